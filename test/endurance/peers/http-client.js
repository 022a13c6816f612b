// HTTP/1.1 client of Node with persistent connections. Every second request is a POST.
// Usage: http-client.js --target=HOST:PORT --seconds=N --requests=N --workers=N --size=BYTES
'use strict'
const http = require('node:http')
const { crc32 } = require('./crc.js')
const { Load, content, options } = require('./tally.js')

const { target, seconds, requests, workers, size } = options()
const agent = new http.Agent({ keepAlive: true, maxSockets: Number(workers) })
const load = new Load(Number(seconds), Number(requests))

// send makes one request and returns the status, the field Proxy-Status and the content.
const send = (method, path, body) => new Promise((resolve, reject) => {
  const request = http.request(`http://${target}${path}`, { method, agent, timeout: 30000 }, (response) => {
    const pieces = []
    response.on('data', (piece) => pieces.push(piece))
    response.on('error', reject)
    response.on('end', () => resolve({ status: response.statusCode, reason: response.headers['proxy-status'], text: Buffer.concat(pieces) }))
  })
  request.on('timeout', () => request.destroy(new Error('no response in 30 s')))
  request.on('error', reject)
  request.end(body)
})

load.run(Number(workers), async (n) => {
  const body = n % 2 ? content(n, Number(size)) : undefined
  const { status, reason, text } = await send(body ? 'POST' : 'GET', `/?size=${size}`, body)
  if (status !== 200) throw new Error(`status ${status} [Proxy-Status: ${reason}]`)
  const want = body ? `${size} ${crc32(body)}` : 'a'.repeat(Number(size))
  if (text.toString() !== want) throw new Error(`wrong content: ${text.length} bytes`)
  return Number(size)
}).then(() => load.print())
