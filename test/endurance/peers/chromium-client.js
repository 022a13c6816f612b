// Chromium as a client: it repeatedly loads a page of chromium-server.js over HTTP/2.
// The modes are "files", "events" and "websocket".
// Usage: chromium-client.js --target=HOST:PORT --ca=FILE --seconds=N --requests=N --mode=MODE
'use strict'
const { spawn } = require('node:child_process')
const crypto = require('node:crypto')
const fs = require('node:fs')
const path = require('node:path')
const { Load, options } = require('./tally.js')

const { target, ca, seconds, requests, mode } = options()
const load = new Load(Number(seconds), Number(requests))
const patience = 30000 // milliseconds until a command or a page fails

// publicKey returns the hash of the public key. Chromium accepts this key without a CA.
const publicKey = () => {
  const key = crypto.createPublicKey(fs.readFileSync(ca)).export({ type: 'spki', format: 'der' })
  return crypto.createHash('sha256').update(key).digest('base64')
}

// A Browser runs Chromium with a pipe for the Chrome DevTools Protocol. Messages are JSON,
// each one followed by a zero byte.
class Browser {
  constructor () {
    const program = ['/usr/bin/google-chrome', '/usr/bin/chromium'].find((name) => fs.existsSync(name))
    this.process = spawn(program, ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
      '--disable-dev-shm-usage', '--disable-background-networking', '--disable-component-update', '--disable-sync',
      '--user-data-dir=' + path.resolve('chromium'), '--ignore-certificate-errors-spki-list=' + publicKey(),
      '--remote-debugging-pipe', 'about:blank'], { stdio: ['ignore', 'ignore', 'inherit', 'pipe', 'pipe'] })
    this.calls = new Map()
    this.listeners = new Map()
    let text = ''
    this.process.stdio[4].setEncoding('utf8').on('data', (piece) => {
      const messages = (text + piece).split('\0')
      text = messages.pop()
      for (const message of messages) this.receive(JSON.parse(message))
    })
  }

  receive ({ id, method, params, result, error }) {
    this.listeners.get(method)?.(params)
    const call = this.calls.get(id)
    this.calls.delete(id)
    if (error) call?.reject(new Error(error.message))
    else call?.resolve(result)
  }

  // send sends a command, and returns its result.
  send (method, params = {}) {
    const id = (this.last ?? 0) + 1
    this.last = id
    this.process.stdio[3].write(JSON.stringify({ id, method, params, sessionId: this.session }) + '\0')
    return new Promise((resolve, reject) => {
      this.calls.set(id, { resolve, reject })
      setTimeout(() => { if (this.calls.has(id)) reject(new Error(`no result of ${method} in ${patience} ms`)) }, patience).unref()
    })
  }

  on (method, listener) { this.listeners.set(method, listener) }

  async open () {
    const { targetInfos } = await this.send('Target.getTargets')
    const { targetId } = targetInfos.find((t) => t.type === 'page') ?? await this.send('Target.createTarget', { url: 'about:blank' })
    const { sessionId } = await this.send('Target.attachToTarget', { targetId, flatten: true })
    this.session = sessionId
    await this.send('Page.enable')
    await this.send('Network.enable')
  }
}

const run = async () => {
  const browser = new Browser()
  await browser.open()
  browser.on('Network.responseReceived', ({ response }) => {
    if (response.protocol !== 'h2') load.failed(`protocol ${response.protocol}`)
    if (response.status >= 300) load.failed(`status ${response.status} [Proxy-Status: ${response.headers['proxy-status']}]`)
    load.result.bytes += response.encodedDataLength
  })
  browser.on('Network.dataReceived', ({ dataLength }) => { load.result.bytes += dataLength })
  browser.on('Network.webSocketFrameReceived', ({ response }) => { load.result.bytes += 2 * response.payloadData.length })
  // The status of a WebSocket over HTTP/2 is 200 (RFC 8441 section 5). HTTP/1.1 uses 101.
  browser.on('Network.webSocketHandshakeResponseReceived', ({ response }) => {
    if (response.status !== 200) load.failed(`WebSocket with status ${response.status}, want 200`)
  })
  browser.on('Network.webSocketFrameError', ({ errorMessage }) => load.failed(errorMessage))
  browser.on('Network.loadingFailed', ({ errorText, canceled }) => { if (!canceled) load.failed(errorText) })

  await load.run(1, async (n) => {
    const loaded = new Promise((resolve, reject) => {
      browser.on('Page.loadEventFired', resolve)
      setTimeout(() => reject(new Error(`page not loaded in ${patience / 1000} s`)), patience).unref()
    })
    loaded.catch(() => {}) // the navigation can fail first
    const { errorText } = await browser.send('Page.navigate', { url: `https://${target}/page?mode=${mode}&n=${n}` })
    if (errorText) throw new Error(errorText)
    await loaded
    const { result } = await browser.send('Runtime.evaluate', { expression: 'result', awaitPromise: true, returnByValue: true })
    if (!result.value) throw new Error('no result: ' + (result.description ?? result.type))
    for (const failure of result.value.failures) load.failed(failure)
    load.result.requests += result.value.requests
    return 0
  })
  browser.process.kill('SIGKILL')
  load.print()
}

run().catch((error) => { console.error(error); process.exit(1) })
