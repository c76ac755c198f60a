// A real OpenID provider (the npm package oidc-provider) with people who are in groups.
// Usage: oidc_provider.mjs CERTIFICATE KEY SECONDS GATEWAY USER...; prints one line of JSON, the issuer and the ID token that the
// authorization code flow with PKCE ends with for each user, and serves until it is killed. Tokens live so many seconds.
// Client towline-cli gets access tokens that only the provider can read; those of towline are for GATEWAY.
import { createHash, generateKeyPairSync, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:https";
import { Provider } from "oidc-provider";
import { browse } from "./oidc_browser.mjs";

const CLIENT = "towline-cli";
const REDIRECT = "https://client.towline.test/callback";
const GROUPS = { ann: ["devs", "everybody"], bob: ["everybody"] };

const [certificate, key] = process.argv.slice(2, 4).map((file) => readFileSync(file));
const [seconds, gateway, ...users] = process.argv.slice(4);
const server = createServer({ cert: certificate, key });
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `https://127.0.0.1:${server.address().port}`;

const client = (name) => ({
  client_id: name,
  token_endpoint_auth_method: "none",
  // On a loopback address with any port (RFC 8252).
  redirect_uris: [REDIRECT, "http://127.0.0.1/"],
  application_type: "native",
  grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
  response_types: ["code"],
});
const claims = (id) => ({ sub: id, preferred_username: id, groups: GROUPS[id] ?? [] });
const life = () => Number(seconds);

// Its notes on keys and pages of its own that are for trying out only.
console.warn = console.info = () => {};
const provider = new Provider(issuer, {
  clients: [client(CLIENT), client("towline")],
  claims: { openid: ["sub"], profile: ["preferred_username"], groups: ["groups"] },
  scopes: ["openid", "profile", "email", "groups", "offline_access"],
  conformIdTokenClaims: false,
  jwks: { keys: [{ ...generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" }), kid: "first" }] },
  cookies: { keys: [randomBytes(16).toString("hex")] },
  ttl: { IdToken: life, AccessToken: life },
  features: {
    deviceFlow: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: (_, { clientId }) => (clientId === "towline" ? gateway : undefined),
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        scope: "openid profile groups", audience: gateway, accessTokenFormat: "jwt", accessTokenTTL: life(),
        jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
  extraTokenClaims: (_, token) => claims(token.accountId),
  findAccount: (_, id) => ({ accountId: id, claims: () => claims(id) }),
});
server.on("request", provider.callback());

async function signIn(user) {
  const verifier = randomBytes(32).toString("base64url");
  const challenge = createHash("sha256").update(verifier).digest("base64url");
  const asked = new URLSearchParams({
    client_id: CLIENT, response_type: "code", redirect_uri: REDIRECT, scope: "openid profile groups",
    code_challenge: challenge, code_challenge_method: "S256", state: "s", nonce: randomBytes(8).toString("hex"),
  });
  const at = await browse(`${issuer}/auth?${asked}`, user, { leaves: (to) => to.origin !== issuer });
  const answer = await fetch(`${issuer}/token`, {
    method: "POST",
    body: new URLSearchParams({
      grant_type: "authorization_code", client_id: CLIENT, code: at.searchParams.get("code"), redirect_uri: REDIRECT,
      code_verifier: verifier,
    }),
  });
  const text = await answer.text();
  const token = JSON.parse(text).id_token;
  if (!token) throw new Error(text);
  return token;
}

const tokens = {};
for (const user of users) tokens[user] = await signIn(user);
console.log(JSON.stringify({ issuer, tokens }));
