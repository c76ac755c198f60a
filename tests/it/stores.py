"""Writes an object into an S3 server or a container of Azurite, as a team's pipeline would.

Arguments: `s3` or `blob`, the address of the server, the name of the object; its content is read from standard input.
For `blob` a token that reads the container (SAS) is printed, and the account's key. `pfx` writes nothing: a certificate
with its key is printed as PKCS #12 in base64, with the content as its password.
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
    print(KEY)


def pfx():
    import base64

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import PrivateFormat, pkcs12

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "principal")])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    # What Azure's library for Go reads is only this.
    how = PrivateFormat.PKCS12.encryption_builder().kdf_rounds(2048)
    how = how.key_cert_algorithm(pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC).hmac_hash(hashes.SHA1()).build(CONTENT)
    made = pkcs12.serialize_key_and_certificates(b"principal", key, builder.sign(key, hashes.SHA256()), None, how)
    print(base64.encodebytes(made).decode())


{"s3": s3, "blob": blob, "pfx": pfx}[KIND]()
