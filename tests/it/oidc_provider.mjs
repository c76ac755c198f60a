// A real OpenID provider (the npm package oidc-provider) with people who are in groups, and a browser that signs them in.
// Usage: oidc_provider.mjs CERTIFICATE KEY USER...; prints one line of JSON, the issuer and the ID token that the authorization
// code flow with PKCE ends with for each user, and serves until it is killed.
import { createHash, generateKeyPairSync, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer, request } from "node:https";
import { Provider } from "oidc-provider";

const CLIENT = "towline-cli";
const REDIRECT = "https://client.towline.test/callback";
const GROUPS = { ann: ["devs", "everybody"], bob: ["everybody"] };

const [certificate, key] = process.argv.slice(2, 4).map((file) => readFileSync(file));
const users = process.argv.slice(4);
const server = createServer({ cert: certificate, key });
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `https://127.0.0.1:${server.address().port}`;

// Its notes on keys and pages of its own that are for trying out only.
console.warn = console.info = () => {};
const provider = new Provider(issuer, {
  clients: [{
    client_id: CLIENT,
    token_endpoint_auth_method: "none",
    redirect_uris: [REDIRECT],
    application_type: "native",
    grant_types: ["authorization_code"],
    response_types: ["code"],
  }],
  claims: { openid: ["sub"], profile: ["preferred_username"], groups: ["groups"] },
  scopes: ["openid", "profile", "groups"],
  conformIdTokenClaims: false,
  jwks: { keys: [{ ...generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" }), kid: "first" }] },
  cookies: { keys: [randomBytes(16).toString("hex")] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id, groups: GROUPS[id] ?? [] }),
  }),
});
server.on("request", provider.callback());

const cookies = new Map();

// One request of the browser.
function ask(url, form) {
  return new Promise((answered, failed) => {
    const body = form && new URLSearchParams(form).toString();
    const headers = { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join("; ") };
    if (body) headers["content-type"] = "application/x-www-form-urlencoded";
    const sent = request(url, { method: body ? "POST" : "GET", headers, agent: false }, (answer) => {
      for (const line of answer.headers["set-cookie"] ?? []) {
        const [, name, value] = /^([^=]+)=([^;]*)/.exec(line);
        cookies.set(name, value);
      }
      let text = "";
      answer.on("data", (part) => { text += part; });
      answer.on("end", () => answered({ status: answer.statusCode, to: answer.headers.location, text }));
    });
    sent.on("error", failed);
    sent.end(body);
  });
}

// Follows redirects, typing what the provider's own pages ask for, until it would leave the provider.
async function browse(from, user) {
  let at = from;
  for (let step = 0; step < 20; step += 1) {
    let answer = await ask(at);
    if (answer.status === 200) {
      const prompt = /name="prompt" value="(\w+)"/.exec(answer.text)?.[1];
      const action = /action="([^"]+)"/.exec(answer.text)?.[1];
      const form = prompt === "login" ? { prompt, login: user, password: "any" } : { prompt };
      answer = await ask(new URL(action, at), form);
    }
    if (!answer.to) throw new Error(`${at}: ${answer.status} ${answer.text.slice(0, 200)}`);
    at = new URL(answer.to, at).toString();
    if (!at.startsWith(issuer)) return new URL(at);
  }
  throw new Error("too many redirects");
}

async function signIn(user) {
  cookies.clear();
  const verifier = randomBytes(32).toString("base64url");
  const challenge = createHash("sha256").update(verifier).digest("base64url");
  const asked = new URLSearchParams({
    client_id: CLIENT, response_type: "code", redirect_uri: REDIRECT, scope: "openid profile groups",
    code_challenge: challenge, code_challenge_method: "S256", state: "s", nonce: randomBytes(8).toString("hex"),
  });
  const code = (await browse(`${issuer}/auth?${asked}`, user)).searchParams.get("code");
  const answer = await ask(`${issuer}/token`, {
    grant_type: "authorization_code", client_id: CLIENT, code, redirect_uri: REDIRECT, code_verifier: verifier,
  });
  const token = JSON.parse(answer.text).id_token;
  if (!token) throw new Error(answer.text);
  return token;
}

const tokens = {};
for (const user of users) tokens[user] = await signIn(user);
console.log(JSON.stringify({ issuer, tokens }));
