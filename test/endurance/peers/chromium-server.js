// Server of the Chromium rows: a page with 200 scripts, server-sent events, and WebSockets
// that return each message. It supports HTTP/1.1 at the first address, and HTTP/2 with
// extended CONNECT (RFC 8441) and TLS at the second address.
// Usage: chromium-server.js PORT TLS-PORT CERTIFICATE KEY
'use strict'
const fs = require('node:fs')
const http = require('node:http')
const http2 = require('node:http2')
const { WebSocket, WebSocketServer } = require('ws')

const [port, tlsPort, cert, key] = process.argv.slice(2)
const files = 200
const events = 100

// text returns the content of a file or of an event. The page contains the same function.
const text = (n) => `${n} `.repeat(1 + n * 37 % 4000)

// The page sets "result" to a promise. Its value is the number of completed requests or
// messages, with a list of failures.
const page = (mode) => `<!doctype html>
<title>${mode}</title>
<script>
const text = ${text}
const failures = []
let requests = 0
const count = (n, got) => { requests++; if (got !== text(n)) failures.push('wrong content') }
const scripts = []
const script = (n, got) => { scripts[n] = true; count(n, got) }

const filesLoaded = async () => {
  for (let n = 0; n < ${files}; n++) if (!scripts[n]) failures.push('a file is missing')
}

const eventsReceived = (stream) => new Promise((resolve) => {
  const source = new EventSource('/events?stream=' + stream)
  let next = 0
  source.onmessage = (event) => {
    if (event.lastEventId !== String(next)) failures.push('wrong event')
    count(next, event.data)
    if (++next === ${events}) { source.close(); resolve() }
  }
  source.onerror = () => { failures.push('event stream ended early'); source.close(); resolve() }
})

const messagesReturned = (messages) => new Promise((resolve) => {
  const socket = new WebSocket('wss://' + location.host + '/echo')
  let next = 0
  socket.onopen = () => socket.send(text(0))
  socket.onmessage = (event) => {
    count(next, event.data)
    if (++next < messages) socket.send(text(next))
    else socket.close(4000, 'done')
  }
  socket.onclose = (event) => {
    if (event.code !== 4000 || next !== messages) failures.push('WebSocket closed with code ' + event.code)
    resolve()
  }
})

const several = (task) => Promise.all(Array.from({ length: 8 }, (_, n) => task(n)))
const modes = {
  files: filesLoaded,
  events: () => several(eventsReceived),
  websocket: () => several(() => messagesReturned(50))
}
let result
addEventListener('load', () => { result = modes['${mode}']().then(() => ({ requests, failures })) })
</script>
${mode === 'files' ? Array.from({ length: files }, (_, n) => `<script async src="/file?n=${n}"></script>`).join('\n') : ''}`

const sendEvents = (response) => {
  let n = 0
  const timer = setInterval(() => {
    response.write(`id: ${n}\ndata: ${text(n)}\n\n`)
    if (++n === events) clearInterval(timer)
  }, 5)
  response.on('close', () => clearInterval(timer))
}

const handle = (request, response) => {
  const url = new URL(request.url, 'http://app')
  const send = (type, content) => {
    response.writeHead(200, { 'content-type': type, 'cache-control': 'no-store' })
    if (content !== undefined) response.end(content)
  }
  request.on('error', () => {})
  response.on('error', () => {})
  switch (url.pathname) {
    case '/page':
      return send('text/html', page(url.searchParams.get('mode')))
    case '/file': {
      const n = Number(url.searchParams.get('n'))
      return send('text/javascript', `script(${n}, ${JSON.stringify(text(n))})`)
    }
    case '/events':
      send('text/event-stream')
      return sendEvents(response)
  }
  response.writeHead(url.pathname === '/favicon.ico' ? 204 : 404)
  response.end()
}

const echo = (socket) => {
  socket.on('error', () => {})
  socket.on('message', (content, binary) => socket.send(content, { binary }))
}

const plain = http.createServer(handle)
new WebSocketServer({ server: plain }).on('connection', echo)

const secure = http2.createSecureServer({
  cert: fs.readFileSync(cert), key: fs.readFileSync(key), settings: { enableConnectProtocol: true }
}, handle)
secure.on('connect', (request, response) => {
  const stream = response.stream
  stream.on('error', () => {})
  stream.respond({ ':status': 200 })
  // The package ws uses these functions of a TCP connection.
  stream.setNoDelay = () => {}
  const socket = new WebSocket(null, undefined, { maxPayload: 1 << 24 })
  socket.setSocket(stream, Buffer.alloc(0), { maxPayload: 1 << 24, skipUTF8Validation: false, allowSynchronousEvents: true })
  echo(socket)
})
secure.listen(Number(tlsPort), '127.0.0.1', () => plain.listen(Number(port), '127.0.0.1'))
