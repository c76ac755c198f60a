"""Writes an object into an S3 server or a container of Azurite, as a team's pipeline would.

Arguments: `s3` or `blob`, the address of the server, the name of the object; its content is read from standard input.
For `blob` a token that reads the container (SAS) is printed.
"""

import datetime
import sys

KIND, URL, NAME = sys.argv[1:4]
CONTENT = sys.stdin.buffer.read()
# The account that every Azurite has, with its published key.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def s3():
    import boto3

    client = boto3.client(
        "s3", endpoint_url=URL, region_name="us-east-1", aws_access_key_id="id", aws_secret_access_key="secret"
    )
    if "fleet" not in [one["Name"] for one in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket="fleet")
    client.put_object(Bucket="fleet", Key=NAME, Body=CONTENT)


def blob():
    from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas

    container = BlobServiceClient(f"{URL}/{ACCOUNT}", credential={"account_name": ACCOUNT, "account_key": KEY}).get_container_client("fleet")
    if not container.exists():
        container.create_container()
    container.upload_blob(NAME, CONTENT, overwrite=True)
    ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=2)
    permission = ContainerSasPermissions(read=True, list=True)
    print(generate_container_sas(ACCOUNT, "fleet", account_key=KEY, permission=permission, expiry=ends))


s3() if KIND == "s3" else blob()
