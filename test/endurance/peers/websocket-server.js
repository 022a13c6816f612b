// WebSocket server of the package ws that returns each message, with compression.
// Usage: websocket-server.js PORT
'use strict'
const { WebSocketServer } = require('ws')

const server = new WebSocketServer({ host: '127.0.0.1', port: Number(process.argv[2]), perMessageDeflate: { threshold: 100 } })
server.on('connection', (socket) => {
  socket.on('error', () => {})
  socket.on('message', (content, binary) => socket.send(content, { binary }))
})
