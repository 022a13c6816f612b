// HTTP/2 server of Node for plain text with prior knowledge. The query fields are "size" in
// bytes and "delay" in milliseconds. Usage: http2-server.js PORT
'use strict'
const http2 = require('node:http2')

http2.createServer({}, (request, response) => {
  const query = new URL(request.url, 'http://app').searchParams
  const respond = () => {
    if (response.stream.destroyed) return
    const content = Buffer.alloc(Number(query.get('size') ?? 10), 'a')
    response.writeHead(200, { 'content-type': 'text/plain', 'content-length': content.length })
    response.end(content)
  }
  request.on('error', () => {})
  response.on('error', () => {})
  request.resume()
  setTimeout(respond, Number(query.get('delay') ?? 0))
}).listen(Number(process.argv[2]), '127.0.0.1')
