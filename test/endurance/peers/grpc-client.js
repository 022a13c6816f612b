// Client of grpc-js: unary calls, and a short bidirectional stream every tenth call. Every
// eighth call is canceled.
// Usage: grpc-client.js --target=HOST:PORT --seconds=N --requests=N --workers=N --size=BYTES
'use strict'
const grpc = require('@grpc/grpc-js')
const { crc32 } = require('./crc.js')
const { Load, content, options } = require('./tally.js')

const { target, seconds, requests, workers, size } = options()
const client = new grpc.Client(target, grpc.credentials.createInsecure(), {
  'grpc.max_receive_message_length': 1 << 24, 'grpc.enable_retries': 0
})
const load = new Load(Number(seconds), Number(requests))
const same = (b) => b
const deadline = () => ({ deadline: Date.now() + 30000 })
const wantTrailer = (status, b) => {
  if (status?.metadata.get('x-sum')[0] !== crc32(b)) throw new Error('missing or wrong trailer')
}

// failure describes the end of a call.
const failure = (error) => new Error(`${grpc.status[error.code]}: ${error.details} [Proxy-Status: ${error.metadata?.get('proxy-status')}]`)

const unary = (body, canceled) => new Promise((resolve, reject) => {
  let status
  let content
  const finish = () => {
    if (!status || !content) return
    try { wantTrailer(status, body) } catch (error) { return reject(error) }
    resolve(content.length)
  }
  const call = client.makeUnaryRequest('/endurance.Peer/Unary', same, same, body, new grpc.Metadata(), deadline(), (error, b) => {
    if (error) return canceled && error.code === grpc.status.CANCELLED ? resolve(0) : reject(failure(error))
    if (!b.equals(body)) return reject(new Error(`wrong content: ${b.length} bytes`))
    content = b
    finish()
  })
  call.on('status', (s) => { status = s; finish() })
  if (canceled) setTimeout(() => call.cancel(), Math.random() * 5)
})

const chat = (body) => new Promise((resolve, reject) => {
  const call = client.makeBidiStreamRequest('/endurance.Peer/Chat', same, same, new grpc.Metadata(), deadline())
  const pieces = []
  call.on('error', (error) => reject(failure(error)))
  call.on('data', (b) => {
    if (!b.equals(body)) return reject(new Error(`wrong content: ${b.length} bytes`))
    pieces.push(b)
    if (pieces.length < 10) call.write(body)
    else call.end()
  })
  call.on('status', (status) => {
    if (status.code !== grpc.status.OK) return
    try { wantTrailer(status, Buffer.concat(pieces)) } catch (error) { return reject(error) }
    resolve(10 * body.length)
  })
  call.write(body)
})

load.run(Number(workers), (n) => {
  const body = content(n, Number(size))
  return n % 10 === 0 ? chat(body) : unary(body, n % 8 === 1)
}).then(() => load.print())
