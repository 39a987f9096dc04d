// Recorded answers: the fixtures under tests/fixtures/cross as bytes, and a server that replays them. The format of a
// fixture is described in src/engine/dialect/tests/rows.rs; this file expands the short lines of its streams.

import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { createServer } from 'node:http';

const FOLDER = new URL('../../fixtures/cross/', import.meta.url);
const OTHER = { chat: 'messages', messages: 'chat' };
const read = (name) => readFileSync(new URL(name, FOLDER), 'utf8');

const chunk = (members) =>
  `data: {"id":"c1","object":"chat.completion.chunk","created":1795158000,"model":"upstream-model",${members}}\n\n`;
const choice = (delta, finish) =>
  chunk(`"choices":[{"index":0,"delta":${delta},"logprobs":null,"finish_reason":${finish}}]`);
const named = (data) => `event: ${JSON.parse(data).type}\ndata: ${data}\n\n`;

const START = JSON.stringify({
  type: 'message_start',
  message: {
    id: 'c1',
    type: 'message',
    role: 'assistant',
    model: 'upstream-model',
    content: [],
    stop_reason: null,
    stop_sequence: null,
    usage: { input_tokens: 7, cache_creation_input_tokens: 0, cache_read_input_tokens: 0, output_tokens: 0 },
  },
});

/** Expansions of the first words of short lines. */
const WORDS = {
  fault: () => '',
  raw: (rest) => `${rest.replaceAll('\\n', '\n')}\n\n`,
  chat: {
    ping: () => ':\n\n',
    role: () => choice('{"role":"assistant","content":"","refusal":null}', 'null'),
    delta: (rest) => choice(rest, 'null'),
    finish: (rest) => choice('{}', rest),
    usage: (rest) => chunk(`"choices":[],"usage":${rest}`),
    chunk: (rest) => chunk(rest.slice(1, -1)),
    done: () => 'data: [DONE]\n\n',
  },
  messages: { ping: () => named('{"type":"ping"}'), start: () => named(START) },
};

/** Short lines as the bytes of a stream. */
function writtenOut(shape, text) {
  const lines = text.split('\n').filter((line) => line !== '');
  const event = (line) => {
    const [word] = line.split(' ', 1);
    const known = WORDS[shape][word] ?? (typeof WORDS[word] === 'function' ? WORDS[word] : undefined);
    if (known) return known(line.slice(word.length + 1));
    if (shape === 'messages') return named(line);
    throw new Error(`unknown line ${line}`);
  };
  return lines.map(event).join('');
}

/** The replies and streams of one row-NN-*.txt. */
function ofRow(file) {
  const found = [];
  let [request, tool] = [null, false];
  for (const [at, part] of read(file).split('=== ').slice(1).entries()) {
    const [head] = part.split('\n', 1);
    const [kind, shape, ...options] = head.split(' ');
    const [input, output = ''] = part.split('--- in\n')[1].split('--- out\n');
    let [said, heard] = [input.trim(), output.trim()];
    if (kind === 'request') {
      [request, tool] = [JSON.parse(said), options.includes('tool')];
      continue;
    }
    const fault = /^(fault|broken) /m.test(heard);
    if (kind === 'stream') [said, heard] = [writtenOut(shape, said), writtenOut(OTHER[shape], heard)];
    // A preceding request in the other format belongs to this answer; it may rename tools or require JSON by a tool.
    const asked = request && 'max_tokens' in request === (shape === 'chat') ? request : null;
    found.push({ name: `${file.slice(0, 6)} ${at}`, kind, shape, said, heard, fault, request: asked, tool });
  }
  return found;
}

/** A pair NN-scenario.upstream.SHAPE.{response.json,stream.sse} and the client's expected response. */
function ofExample(file) {
  const [scenario, , shape, kind] = file.split('.');
  if (kind === 'request' || !OTHER[shape]) return [];
  const pair = file.replace(`upstream.${shape}`, `client.${OTHER[shape]}`);
  const heard = existsSync(new URL(pair, FOLDER)) ? read(pair) : null;
  const fault = scenario.includes('error');
  return [{ name: scenario, kind: kind === 'response' ? 'reply' : kind, shape, said: read(file), heard, fault }];
}

/** All recordings: an upstream of format `shape` sends `said`, a client of the other format receives `heard`. */
export function recordings() {
  const files = readdirSync(FOLDER).toSorted();
  const rows = files.filter((file) => file.startsWith('row-')).flatMap(ofRow);
  return [...rows, ...files.filter((file) => file.includes('.upstream.')).flatMap(ofExample)];
}

/** A server that sends one response, the last one set, to every request. */
export class Player {
  static async start() {
    const player = new Player();
    player.server = createServer((request, response) => {
      request.resume().on('end', () => {
        response.writeHead(200, { 'content-type': player.kind });
        for (let at = 0; at < player.body.length; at += 100) response.write(player.body.subarray(at, at + 100));
        response.end();
      });
    });
    await new Promise((resolve) => player.server.listen(0, '127.0.0.1', resolve));
    player.address = `127.0.0.1:${player.server.address().port}`;
    return player;
  }

  play(kind, text) {
    this.kind = kind === 'stream' ? 'text/event-stream' : 'application/json';
    this.body = Buffer.from(text);
  }

  stop() {
    this.server.closeAllConnections();
    this.server.close();
  }
}
