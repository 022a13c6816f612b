"""httpx client: GET requests, and POST requests with and without Content-Length. It sends
END_STREAM of HTTP/2 in a frame after the content.

Usage: httpx_client.py URL SECONDS WORKERS REQUESTS
"""

import asyncio
import collections
import json
import re
import sys
import time
import zlib

import httpx

url, seconds, workers, minimum = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
end = time.monotonic() + seconds
last = time.monotonic() + 120  # a load without the minimum number of requests ends here
result = {"requests": 0, "bytes": 0, "failures": collections.Counter()}


async def pieces(content):
    for i in range(0, len(content), 1000):
        yield content[i : i + 1000]


async def exchange(client, n):
    """Sends the request n and returns the length of its content, or raises an error."""
    size = (0, 1, 1000, 20000)[n // 3 % 4]
    if n % 3 == 0:
        response = await client.get(url + "/?size=%d" % size)
        correct = len(response.content) == size
    else:
        content = bytes((i * 31 + n) & 0xFF for i in range(size))
        response = await client.post(url + "/post", content=content if n % 3 == 1 else pieces(content))
        correct = response.text == "%d %08x" % (size, zlib.crc32(content))
    if response.status_code != 200 or not correct:
        raise ValueError("status %d, or wrong content [%s]" % (response.status_code, response.headers.get("proxy-status")))
    return size


async def work(client, worker):
    n = worker
    while time.monotonic() < end or (result["requests"] < minimum and time.monotonic() < last):
        result["requests"] += 1
        try:
            size = await exchange(client, n)
            result["bytes"] += size
        except (httpx.HTTPError, ValueError, KeyError) as error:  # KeyError: a defect of httpcore 0.16
            kind = "%s: %s" % (type(error).__name__, error)
            result["failures"][re.sub(r"\d{4,}", "N", kind)[:160]] += 1
        n += workers


async def main():
    limits = httpx.Limits(max_connections=8, max_keepalive_connections=8)
    async with httpx.AsyncClient(http2=True, verify=False, timeout=30, limits=limits) as client:
        await asyncio.gather(*(work(client, worker) for worker in range(workers)))


asyncio.run(main())
print(json.dumps(result))
