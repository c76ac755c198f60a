"""Signs a user in with Microsoft's own library and a browser without scripts: msal_user.py URL TENANT CA USER (the password on
stdin). Device code, then authorization code with PKCE, then a refreshed token; one line of JSON for each.
"""

import html.parser
import http.cookiejar
import json
import ssl
import sys
import urllib.parse
import urllib.request

import msal

url, tenant, ca, user = sys.argv[1:]
password = sys.stdin.readline().rstrip("\n")
AZ = "04b07795-8ddb-461a-bbee-02f9e1bf7b46"
scope = [f"{url}/.default"]


class Form(html.parser.HTMLParser):
    """The form of a page, as a browser reads it."""

    def __init__(self, page):
        super().__init__()
        self.action, self.fields = None, {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        assert tag != "script", "a page with a script"
        if tag == "form":
            self.action = attrs["action"]
        if tag == "input" and "name" in attrs:
            self.fields[attrs["name"]] = attrs.get("value", "")


browser = urllib.request.build_opener(
    urllib.request.ProxyHandler({}),
    urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca)),
    urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()),
)


def get(address):
    with browser.open(address) as answer:
        return address, answer.read().decode()


def send(at, page, **more):
    form = Form(page)
    body = urllib.parse.urlencode({**form.fields, **more}).encode()
    with browser.open(urllib.parse.urljoin(at, form.action), body) as answer:
        return at, answer.read().decode()


def application():
    return msal.PublicClientApplication(
        AZ, authority=f"{url}/{tenant}", validate_authority=False, instance_discovery=False, verify=ca
    )


app = application()
flow = app.initiate_device_flow(scope)
at, page = get(flow["verification_uri"])
at, page = send(at, page, user_code=flow["user_code"])
send(at, page, username=user, password=password, decision="allow")
print(json.dumps(app.acquire_token_by_device_flow(flow)))

app = application()
flow = app.initiate_auth_code_flow(scope, redirect_uri="http://localhost:1", response_mode="form_post")
at, page = get(flow["auth_uri"])
at, page = send(at, page, username=user, password=password, decision="allow")
answer = Form(page)
assert answer.action == "http://localhost:1/", answer.action
print(json.dumps(app.acquire_token_by_auth_code_flow(flow, answer.fields)))

account = app.get_accounts(user)[0]
print(json.dumps(app.acquire_token_silent(scope, account, force_refresh=True)))
