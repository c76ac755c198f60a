// A browser without scripts for one person: it follows links, sends the forms that pages show, and types what they ask for.
// Usage: oidc_browser.mjs USER URL [CODE]; signs the person in from there on, with the code of a device where a page asks for it.
import { request as plain } from "node:http";
import { request as secure } from "node:https";
import { pathToFileURL } from "node:url";

// One request, with the cookies of the session.
function ask(cookies, url, form) {
  return new Promise((answered, failed) => {
    const body = form && new URLSearchParams(form).toString();
    const headers = { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join("; ") };
    if (body) headers["content-type"] = "application/x-www-form-urlencoded";
    const request = url.protocol === "https:" ? secure : plain;
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

// The form of a page with its fields, and what the person types into it.
function formOf(page, typed) {
  const [, action, inputs] = /<form[^>]*action="([^"]*)"[^>]*>([^]*?)<\/form>/.exec(page) ?? [];
  if (action === undefined) return undefined;
  const fields = {};
  for (const [input] of inputs.matchAll(/<input[^>]*>/g)) {
    const name = /name="([^"]*)"/.exec(input)?.[1];
    if (name) fields[name] = typed[name] ?? /value="([^"]*)"/.exec(input)?.[1] ?? "";
  }
  return { action, fields };
}

// Goes on until a page has no form, or `leaves` says that an address is not to be opened any more; that address.
export async function browse(from, user, { code, leaves = () => false } = {}) {
  const cookies = new Map();
  const typed = { login: user, password: "any", ...(code && { user_code: code }) };
  let at = new URL(from);
  for (let step = 0; step < 30; step += 1) {
    let answer = await ask(cookies, at);
    let form = answer.status < 300 && formOf(answer.text, typed);
    while (form) {
      at = new URL(form.action, at);
      answer = await ask(cookies, at, form.fields);
      form = answer.status < 300 && formOf(answer.text, typed);
    }
    if (answer.status >= 400) throw new Error(`${at}: ${answer.status} ${answer.text.slice(0, 300)}`);
    if (!answer.to) return at;
    at = new URL(answer.to, at);
    if (leaves(at)) return at;
  }
  throw new Error(`too many pages: ${at}`);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [user, url, code] = process.argv.slice(2);
  await browse(url, user, { code });
}
