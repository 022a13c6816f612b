// HTTP/2 client of Node with one connection. Every fourth stream is canceled.
// Usage: http2-client.js --target=HOST:PORT --seconds=N --requests=N --workers=N --size=BYTES --cancel=N
'use strict'
const http2 = require('node:http2')
const { Load, options } = require('./tally.js')

const { target, seconds, requests, workers, size, cancel } = options()
const load = new Load(Number(seconds), Number(requests))
let session

// connection returns the connection, and opens another one if the last one is closed.
const connection = () => {
  if (!session || session.closed || session.destroyed) {
    session = http2.connect(`http://${target}`)
    session.on('error', () => {})
    session.on('goaway', (code) => { if (code) load.failed(`GOAWAY with code ${code}`) })
  }
  return session
}

// send makes one request. A request that is canceled ends with the first byte of the response, or earlier.
const send = (canceled) => new Promise((resolve, reject) => {
  const stream = connection().request({ ':path': `/?size=${size}` })
  let length = 0
  let status = 0
  let reason
  stream.setTimeout(30000, () => reject(new Error('no response in 30 s')))
  stream.on('response', (fields) => { status = fields[':status']; reason = fields['proxy-status'] })
  stream.on('data', (piece) => { length += piece.length; if (canceled) stream.close(http2.constants.NGHTTP2_CANCEL) })
  stream.on('error', (error) => canceled ? resolve(length) : reject(error))
  stream.on('close', () => {
    if (canceled) return resolve(length)
    if (status !== 200) return reject(new Error(`status ${status} [Proxy-Status: ${reason}], code ${stream.rstCode}`))
    if (length !== Number(size)) return reject(new Error(`wrong content: ${length} bytes`))
    resolve(length)
  })
  if (canceled) setTimeout(() => stream.close(http2.constants.NGHTTP2_CANCEL), Math.random() * 10)
})

load.run(Number(workers), (n) => send(Number(cancel ?? 0) > 0 && n % Number(cancel) === 0)).then(() => load.print())
