"""ASGI application: the query field "size" is the size of the response in bytes. The response
to a POST request is the content of the request."""

from urllib.parse import parse_qs


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    content = b""
    while scope["method"] == "POST":
        message = await receive()
        content += message.get("body", b"")
        if not message.get("more_body"):
            break
    if scope["method"] != "POST":
        query = parse_qs(scope["query_string"].decode())
        content = b"a" * int(query.get("size", ["10"])[0])
    await send({"type": "http.response.start", "status": 200,
                "headers": [(b"content-length", str(len(content)).encode())]})
    await send({"type": "http.response.body", "body": content})
