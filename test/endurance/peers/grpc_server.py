"""grpcio server that returns each message. Usage: grpc_server.py PORT"""

import sys
import zlib
from concurrent import futures

import grpc


def checksum(content):
    return (("x-sum", "%08x" % zlib.crc32(content)),)


def unary(request, context):
    context.set_trailing_metadata(checksum(request))
    return request


def chat(requests, context):
    content = b""
    for request in requests:
        content += request
        yield request
    context.set_trailing_metadata(checksum(content))


server = grpc.server(futures.ThreadPoolExecutor(max_workers=64))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("endurance.Peer", {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Chat": grpc.stream_stream_rpc_method_handler(chat),
})])
server.add_insecure_port("127.0.0.1:" + sys.argv[1])
server.start()
server.wait_for_termination()
