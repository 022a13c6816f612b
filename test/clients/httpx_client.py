"""Sends the file body by HTTP/2 and prints the answer: httpx_client.py URL FOLDER, where
FOLDER holds body and tls.crt."""
import sys

import httpx

url, folder = sys.argv[1:]
with open(folder + "/body", "rb") as f:
    body = f.read()
with httpx.Client(http2=True, verify=folder + "/tls.crt") as client:
    answer = client.post(url, content=body)
    answer.raise_for_status()
    print(answer.http_version, answer.text)
