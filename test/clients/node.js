// Sends the file body over HTTP/2 and prints the response. Usage: node.js URL DIRECTORY, where
// DIRECTORY contains body and tls.crt.
const fs = require('fs');
const http2 = require('http2');

const url = new URL(process.argv[2]);
const folder = process.argv[3];
const client = http2.connect(url, { ca: fs.readFileSync(`${folder}/tls.crt`) });
client.on('error', (e) => { throw e; });
const stream = client.request({ ':method': 'POST', ':path': url.pathname });
stream.pipe(process.stdout);
stream.on('error', (e) => { throw e; });
stream.on('close', () => client.close());
fs.createReadStream(`${folder}/body`).pipe(stream);
