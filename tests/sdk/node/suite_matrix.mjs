// Both families of official SDK with every kind of upstream: complete, streamed, and with the accumulating helper.
// Every cell is a test. At the end the matrix is printed, with the number of checks in each cell.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Gateway } from './gateway.mjs';
import { AnthropicAi, CASES, EXPLANATION, OpenAi, PARAMETERS, PNG, SCHEMA, MODES } from './cases.mjs';

const REQUEST_ID = /^req_[0-9a-f]{32}$/;
const FAMILIES = { openai: OpenAi, anthropic: AnthropicAi };
const MODELS = { chat: 'small', messages: 'large', responses: 'newer' };
const STOPS = {
  end: { openai: 'stop', anthropic: 'end_turn' },
  tools: { openai: 'tool_calls', anthropic: 'tool_use' },
  length: { openai: 'length', anthropic: 'max_tokens' },
  refusal: { openai: 'content_filter', anthropic: 'refusal' },
  sequence: { openai: 'stop', anthropic: 'stop_sequence' },
};
const IMAGE_SOURCE = { type: 'base64', media_type: 'image/png', data: PNG };
const IMAGE_URL = `data:image/png;base64,${PNG}`;
const counts = new Map();

let gateway;
before(async () => {
  gateway = await Gateway.start();
});

/** The messages that the upstream received; in the responses format, without the types of items. */
const talk = ({ messages, input }) =>
  messages ?? input.map(({ type, ...item }) => (type === 'message' ? item : { type, ...item }));

/** The checks of each case: they get the cell, the response, and the upstream's request. */
const checks = {
  text({ same, stop, family, upstream, row }, answer, heard) {
    same(answer.text, 'This answer was made by the');
    same([answer.calls, answer.thought, answer.refusal], [[], '', null]);
    same([answer.prompt, answer.completion], [4, 6]);
    const asBlocks = family === 'openai' && upstream === 'messages';
    same(talk(heard), [{ role: 'user', content: asBlocks ? [{ type: 'text', text: row.say }] : row.say }]);
    stop('end');
  },
  system({ same, stop, family, upstream }, answer, heard) {
    same(answer.text, 'This answer was made by the');
    same(answer.prompt, 6);
    const blocks = family === 'openai' ? [{ type: 'text', text: 'be brief' }] : 'be brief';
    if (upstream === 'responses') same(heard.instructions, 'be brief');
    else if (upstream === 'chat') same(heard.messages[0], { role: 'system', content: 'be brief' });
    else same(heard.system, blocks);
    same(talk(heard).length, upstream === 'chat' ? 2 : 1);
    stop('end');
  },
  'one tool'({ same, stop, upstream }, answer, heard) {
    same(answer.calls, [['look', { city: 'Oslo', n: 1 }]]);
    same(answer.text, '');
    const [tool] = heard.tools;
    const schema = { chat: tool.function?.parameters, messages: tool.input_schema, responses: tool.parameters };
    same(schema[upstream], PARAMETERS);
    stop('tools');
  },
  'three parallel tools'({ same, stop, row }, answer, heard) {
    same(answer.calls, row.tools.map((name, at) => [name, { city: 'Oslo', n: at + 1 }]));
    same(answer.text, 'This answer');
    same(new Set(answer.ids).size, 3);
    same(heard.tools.length, 3);
    stop('tools');
  },
  'tool results'({ same, stop, family, upstream }, answer, heard) {
    const moved = 'seen\n[see the attachment in the next user message] [tool_error] it broke';
    const told = { chat: moved, messages: 'seen it broke', responses: 'seen [tool_error] it broke' };
    same(answer.text, family === 'anthropic' ? told[upstream] : 'seen it broke');
    const messages = talk(heard);
    const roles = messages.map((message) => message.role ?? message.type);
    if (upstream === 'responses') {
      const [calls, outputs] = [Array(2).fill('function_call'), Array(2).fill('function_call_output')];
      same(roles, ['user', ...calls, ...outputs, 'user']);
      same(messages.slice(1, 5).map((item) => item.call_id), ['c1', 'c2', 'c1', 'c2']);
      const places = family === 'anthropic' ? messages[3].output : messages[5].content;
      same(places.filter((part) => part.type === 'input_image').map((part) => part.image_url), [IMAGE_URL]);
    } else if (upstream === 'chat') {
      same(roles, ['user', 'assistant', 'tool', 'tool', 'user']);
      same(messages.slice(2, 4).map((message) => message.tool_call_id), ['c1', 'c2']);
      const images = messages[4].content.filter((part) => part.type === 'image_url');
      same(images.map((part) => part.image_url.url), [IMAGE_URL]);
    } else {
      same(roles, ['user', 'assistant', 'user']);
      const results = messages[2].content.slice(0, 2);
      same(results.map((block) => [block.type, block.tool_use_id]), [['tool_result', 'c1'], ['tool_result', 'c2']]);
      const places = family === 'anthropic' ? results[0].content : messages[2].content;
      same(places.filter((block) => block.type === 'image').map((block) => block.source), [IMAGE_SOURCE]);
      if (family === 'anthropic') same(results[1].is_error, true);
    }
    stop('end');
  },
  'image in'({ same, stop, upstream, row }, answer, heard) {
    same(answer.text, 'This answer was');
    const [image, text] = talk(heard)[0].content;
    same(text, { type: upstream === 'responses' ? 'input_text' : 'text', text: row.say });
    if (upstream === 'responses') same(image.image_url, IMAGE_URL);
    else if (upstream === 'chat') same(image.image_url.url, IMAGE_URL);
    else same(image.source, IMAGE_SOURCE);
    stop('end');
  },
  thinking({ same, stop, family, upstream }, answer, heard) {
    same(answer.thought, 'This answer was made by');
    same(answer.text, 'This answer was made');
    same([answer.completion, answer.thinkingTokens], [9, 5]);
    // For a responses upstream it carries the reasoning that the upstream requires back.
    const signature = { chat: /^$/, messages: /^c2ltdWxhdGVk$/, responses: /^tg1\./ }[upstream];
    if (family === 'anthropic') same(signature.test(answer.signature), true, answer.signature);
    if (family === 'anthropic' && upstream === 'messages') same(heard.thinking.budget_tokens, 2048);
    stop('end');
  },
  'JSON schema'({ same, stop, family, upstream, mode }, answer, heard) {
    same(JSON.parse(answer.text), { city: 'Oslo', number: 1 });
    if (family === 'anthropic' && mode === 'helper') same(answer.parsed, { city: 'Oslo', number: 1 });
    const formats = { chat: heard.response_format?.json_schema, messages: heard.output_config?.format };
    const format = formats[upstream] ?? heard.text.format;
    same(Object.keys(format.schema.properties).sort(), Object.keys(SCHEMA.properties).sort());
    same(format.schema.additionalProperties, false);
    stop('end');
  },
  'stop by length'({ same, stop, upstream }, answer, heard) {
    same(answer.text.split(/\s+/).length, 16);
    same(upstream === 'responses' ? heard.max_output_tokens : heard.max_tokens, 16);
    same(answer.completion, 16);
    stop('length');
  },
  'stop sequence'({ same, stop, family, upstream }, answer, heard) {
    same(answer.text, 'This answer was ');
    same(upstream === 'chat' ? heard.stop : heard.stop_sequences, ['made']);
    // A chat upstream reports neither that a sequence ended the answer nor which one.
    const told = family === 'anthropic' && upstream === 'messages';
    same(answer.sequence, told ? 'made' : null);
    stop(told || family === 'openai' ? 'sequence' : 'end');
  },
  refusal({ same, stop, family, upstream }, answer) {
    const said = 'This answer was made';
    const own = family === 'openai' && upstream !== 'messages';
    const explained = upstream === 'messages' ? EXPLANATION : null;
    same([answer.text, answer.refusal], own ? ['', said] : [said, explained]);
    stop('refusal');
  },
  'error in the middle'({ same, family }, answer) {
    same(answer.text, 'This answer was');
    same(answer.raised instanceof FAMILIES[family].error, true, String(answer.raised));
    same(answer.raised.type, 'upstream_error');
    const body = family === 'openai' ? answer.raised.error : answer.raised.error.error;
    same(body.request_id, answer.id);
    same(answer.stop, null);
  },
};

async function errorBefore({ same, family, mode, row }, sdk, asked) {
  const error = await sdk[mode](row, asked).then(() => assert.fail('no error'), (error) => error);
  same(error.constructor, FAMILIES[family].refused, String(error));
  same(error.status, 500);
  same((family === 'openai' ? error.error : error.error.error).type, 'upstream_error');
  same(REQUEST_ID.test(error.requestID), true);
}

async function run(cell) {
  const { same, family, upstream, mode, row } = cell;
  const sdk = new FAMILIES[family](gateway);
  const asked = sdk.request(row, MODELS[upstream]);
  if (row.name === 'error before') return errorBefore(cell, sdk, asked);
  const answer = await sdk[mode](row, asked);
  same(REQUEST_ID.test(answer.id), true, answer.id);
  same(answer.model, MODELS[upstream]);
  const stop = (kind) => same(answer.stop, STOPS[kind][family]);
  checks[row.name]({ ...cell, stop }, answer, (await gateway.last()).body);
  if (row.name !== 'error in the middle') {
    same(answer.raised, undefined);
    same(answer.prompt > 0 && answer.completion > 0, true, 'usage is there');
  }
}

const columns = Object.keys(FAMILIES).flatMap((family) =>
  Object.keys(MODELS).flatMap((upstream) => MODES.map((mode) => [family, upstream, mode])),
);

for (const [family, upstream, mode] of columns) {
  for (const row of CASES.filter((row) => !row.notApplicable?.[mode] && !row.notApplicable?.[upstream])) {
    const name = `${family} at ${upstream}, ${mode}: ${row.name}`;
    test(name, async () => {
      let checked = 0;
      const same = (got, expected, what) => {
        assert.deepEqual(got, expected, what);
        checked += 1;
      };
      counts.set(name, 'FAIL');
      await run({ same, family, upstream, mode, row });
      counts.set(name, checked);
    });
  }
}

after(async () => {
  const line = (first, cells) => console.log(first.padEnd(22) + cells.map((cell) => `${cell}`.padStart(10)).join(''));
  console.log('checks in each cell of the matrix; - is not applicable');
  for (const part of [0, 1, 2]) line('', columns.map((column) => column[part]));
  for (const row of CASES) {
    const count = ([family, upstream, mode]) =>
      row.notApplicable?.[mode] || row.notApplicable?.[upstream] ? '-' : counts.get(`${family} at ${upstream}, ${mode}: ${row.name}`);
    line(row.name, columns.map(count));
  }
  for (const { name, notApplicable } of CASES) {
    for (const [mode, why] of Object.entries(notApplicable ?? {})) console.log(`- ${name}, ${mode}: ${why}`);
  }
  const right = [...counts.values()].filter((count) => count !== 'FAIL');
  const sum = right.reduce((all, count) => all + count, 0);
  console.log(`${right.length} of ${counts.size} cells passed, ${sum} checks`);
  assert.deepEqual(await gateway.stop(), [0, 0], 'gateway and provider end with code 0');
});
