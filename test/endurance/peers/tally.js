// Helpers of the Node clients: the options of the command line, and the result.
'use strict'

// options reads arguments of the form --name=value.
exports.options = () => Object.fromEntries(process.argv.slice(2).map((text) => {
  const [name, ...value] = text.replace(/^--/, '').split('=')
  return [name, value.join('=')]
}))

// longest bounds a load that does not reach its minimum number of requests, in milliseconds.
const longest = 120000

// Load repeats a call with a number of workers and counts the results. It stops after a number of
// seconds, but not before it has made the minimum number of requests. The call returns the bytes
// of content, or throws an error.
exports.Load = class {
  constructor (seconds, requests = 0) {
    this.end = Date.now() + 1000 * seconds
    this.last = Date.now() + longest
    this.requests = requests
    this.result = { requests: 0, bytes: 0, failures: {} }
  }

  more () { return Date.now() < this.end || (this.result.requests < this.requests && Date.now() < this.last) }

  ok (bytes) {
    this.result.requests++
    this.result.bytes += bytes
  }

  failed (kind) {
    this.result.requests++
    this.result.failures[kind] = (this.result.failures[kind] ?? 0) + 1
  }

  async run (workers, call) {
    const work = async (worker) => {
      for (let n = worker; this.more(); n += workers) {
        try {
          this.ok(await call(n))
        } catch (error) {
          this.failed(String(error.message ?? error).replace(/\d{4,}/g, 'N').slice(0, 160))
        }
      }
    }
    await Promise.all(Array.from({ length: workers }, (_, worker) => work(worker)))
  }

  print () {
    console.log(JSON.stringify(this.result))
    process.exit(0)
  }
}

// content returns size bytes that depend on n.
exports.content = (n, size) => {
  const b = Buffer.alloc(size)
  for (let i = 0; i < size; i++) b[i] = (i * 31 + n) & 0xff
  return b
}
