// WebSocket client of the package ws. Messages are up to 64 KB, partly compressed and
// partly fragmented. Every connection is closed with a status code after 100 messages.
// Usage: websocket-client.js --target=HOST:PORT --seconds=N --requests=N --workers=N
'use strict'
const { once } = require('node:events')
const { WebSocket } = require('ws')
const { Load, content, options } = require('./tally.js')

const { target, seconds, requests, workers } = options()
const load = new Load(Number(seconds), Number(requests))

// send sends one message, in three fragments if n is odd.
const send = (socket, body, n) => {
  const compress = n % 3 === 0
  if (n % 2 === 0) return socket.send(body, { binary: true, compress })
  const third = Math.ceil(body.length / 3)
  for (let i = 0; i < 3; i++) socket.send(body.subarray(i * third, (i + 1) * third), { binary: true, compress, fin: i === 2 })
}

// session opens a connection, exchanges 100 messages, and closes the connection.
const session = async (n) => {
  const signal = AbortSignal.timeout(30000)
  const socket = new WebSocket(`ws://${target}/`, { perMessageDeflate: { threshold: 100 } })
  let reason
  socket.on('unexpected-response', (_, response) => {
    reason = new Error(`status ${response.statusCode} [Proxy-Status: ${response.headers['proxy-status']}]`)
    socket.terminate()
  })
  try {
    await once(socket, 'open', { signal })
    let bytes = 0
    for (let i = 0; i < 100 && load.more(); i++) {
      const body = content(i, (n * 7919 + i * 104729) % 65536)
      if (i % 10 === 0) {
        const pong = once(socket, 'pong', { signal })
        socket.ping('p')
        await pong
      }
      const message = once(socket, 'message', { signal })
      send(socket, body, i)
      const [got] = await message
      if (!got.equals(body)) throw new Error(`wrong content: ${got.length} bytes`)
      load.ok(2 * body.length)
      bytes += body.length
    }
    const closed = once(socket, 'close', { signal })
    socket.close(4000, 'done')
    const [code] = await closed
    if (code !== 4000) throw new Error(`close code ${code}`)
    return bytes
  } catch (error) {
    socket.terminate()
    throw reason ?? error
  }
}

load.run(Number(workers), session).then(() => load.print())
