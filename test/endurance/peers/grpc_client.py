"""grpcio client: unary calls, a short bidirectional stream every tenth call, and a deadline
of DEADLINE seconds every eighth call.

Usage: grpc_client.py TARGET SECONDS WORKERS SIZE DEADLINE REQUESTS
"""

import collections
import json
import re
import sys
import threading
import time
import zlib

import grpc

target, seconds, workers, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
longest = 30
deadline = float(sys.argv[5])
minimum = int(sys.argv[6])
end = time.monotonic() + seconds
last = time.monotonic() + 120  # a load without the minimum number of requests ends here
lock = threading.Lock()
result = {"requests": 0, "bytes": 0, "expected": collections.Counter(), "failures": collections.Counter()}


def count(kind, counter="failures"):
    with lock:
        result["requests"] += 1
        if kind:
            result[counter][kind] += 1
        else:
            result["bytes"] += size


def check(call, content):
    want = "%08x" % zlib.crc32(content)
    got = dict(call.trailing_metadata() or ()).get("x-sum")
    return None if got == want else "missing or wrong trailer"


def exchange(channel, n):
    content = bytes((i * 31 + n) & 0xFF for i in range(size))
    if n % 10 == 0:
        call = channel.stream_stream("/endurance.Peer/Chat")(iter([content] * 10), timeout=longest)
        replies = list(call)
        return "wrong content" if replies != [content] * 10 else check(call, content * 10)
    short = n % 8 == 1 and deadline < longest
    try:
        call = channel.unary_unary("/endurance.Peer/Unary")
        reply, call = call.with_call(content, timeout=deadline if short else longest)
    except grpc.RpcError as error:
        if short and error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return "DEADLINE_EXCEEDED"
        raise
    return "wrong content" if reply != content else check(call, content)


def work(channel, worker):
    n = worker
    while time.monotonic() < end or (result["requests"] < minimum and time.monotonic() < last):
        try:
            kind = exchange(channel, n)
            count(kind, "expected" if kind == "DEADLINE_EXCEEDED" else "failures")
        except grpc.RpcError as error:
            fields = dict(error.trailing_metadata() or ())
            kind = "%s: %s [Proxy-Status: %s]" % (error.code(), error.details(), fields.get("proxy-status"))
            count(re.sub(r"\d{4,}|127\.0\.0\.1:\d+", "N", kind)[:160])
        n += workers


with grpc.insecure_channel(target, options=[("grpc.enable_retries", 0)]) as channel:
    threads = [threading.Thread(target=work, args=(channel, worker)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(json.dumps(result))
