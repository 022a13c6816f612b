// Server of grpc-js that returns each message. Usage: grpc-server.js PORT
'use strict'
const grpc = require('@grpc/grpc-js')
const { crc32 } = require('./crc.js')

const same = (b) => b
const method = (name, streams) => ({
  path: `/endurance.Peer/${name}`, requestStream: streams, responseStream: streams,
  requestSerialize: same, requestDeserialize: same, responseSerialize: same, responseDeserialize: same
})
const trailer = (pieces) => {
  const fields = new grpc.Metadata()
  fields.set('x-sum', crc32(Buffer.concat(pieces)))
  return fields
}
const unary = (call, respond) => respond(null, call.request, trailer([call.request]))
const chat = (call) => {
  const pieces = []
  call.on('data', (piece) => { pieces.push(piece); call.write(piece) })
  call.on('error', () => {})
  call.on('end', () => call.end(trailer(pieces)))
}

const server = new grpc.Server({ 'grpc.max_receive_message_length': 1 << 24 })
server.addService({ Unary: method('Unary', false), Chat: method('Chat', true) }, { Unary: unary, Chat: chat })
server.bindAsync(`127.0.0.1:${process.argv[2]}`, grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) throw error
})
