"""Signs in with Microsoft's own library, unmodified: msal_client.py URL TENANT CLIENT CA SCOPE... (the secret on stdin).

One line of JSON for each scope: the token, or what was refused. With TIMES set the first scope is asked for by so many
clients at once, and only how many got a token is printed.
"""

import concurrent.futures
import json
import os
import sys

import msal

url, tenant, client, ca, *scopes = sys.argv[1:]
secret = sys.stdin.readline().rstrip("\n")


def application():
    return msal.ConfidentialClientApplication(
        client,
        client_credential=secret,
        authority=f"{url}/{tenant}",
        validate_authority=False,
        instance_discovery=False,
        verify=ca,
    )


def token(scope):
    return application().acquire_token_for_client([scope])


times = int(os.environ.get("TIMES", "0"))
if times:
    with concurrent.futures.ThreadPoolExecutor(times) as pool:
        answers = list(pool.map(token, [scopes[0]] * times))
    good = [answer for answer in answers if "access_token" in answer]
    bad = next((answer for answer in answers if "access_token" not in answer), None)
    print(json.dumps({"good": len(good), "bad": bad}))
    sys.exit()

for scope in scopes:
    try:
        print(json.dumps(token(scope)))
    except ValueError as error:
        print(json.dumps({"error": "discovery", "error_description": str(error)}))
