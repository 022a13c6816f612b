// CRC-32 (IEEE) as eight hexadecimal digits. node:zlib contains it since Node 20.15.
'use strict'
const zlib = require('node:zlib')

const table = Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1
  return n >>> 0
})
const slow = (b) => ~b.reduce((sum, byte) => table[(sum ^ byte) & 0xff] ^ (sum >>> 8), -1) >>> 0

exports.crc32 = (b) => (zlib.crc32 ?? slow)(b).toString(16).padStart(8, '0')
