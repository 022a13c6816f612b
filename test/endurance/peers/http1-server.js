// HTTP/1.1 server of Node. The query field "size" is the size of the response in bytes. The
// response to a POST request contains the length and the CRC-32 of the content.
// Usage: http1-server.js PORT KEEP-ALIVE-MILLISECONDS
'use strict'
const http = require('node:http')
const { crc32 } = require('./crc.js')

const server = http.createServer((request, response) => {
  request.on('error', () => {})
  if (request.method === 'GET') {
    const query = new URL(request.url, 'http://app').searchParams
    response.end(Buffer.alloc(Number(query.get('size') ?? 10), 'a'))
    return
  }
  const pieces = []
  request.on('data', (piece) => pieces.push(piece))
  request.on('end', () => {
    const content = Buffer.concat(pieces)
    response.end(`${content.length} ${crc32(content)}`)
  })
})
server.keepAliveTimeout = Number(process.argv[3] ?? 5000)
server.listen(Number(process.argv[2]), '127.0.0.1')
