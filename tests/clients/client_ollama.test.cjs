// The npm package "ollama".
const assert = require('node:assert');
const { test } = require('node:test');
const { Ollama } = require('ollama');

const model = 'smollm2';
const messages = [{ role: 'user', content: 'Name three colours.' }];
const options = { temperature: 0, num_predict: 12 };
const client = new Ollama({ host: process.env.CLIENTS_SERVER });

test('chat, whole and streamed', async () => {
  const whole = await client.chat({ model, messages, options });
  let text = '';
  for await (const piece of await client.chat({ model, messages, options, stream: true })) text += piece.message.content;
  assert.ok(text);
  assert.strictEqual(text, whole.message.content);
});

test('generate, embed, list', async () => {
  const answer = await client.generate({ model, prompt: 'The capital of France is', options, raw: true });
  assert.match(answer.response, /Paris/);
  assert.ok(answer.eval_count > 0);
  assert.strictEqual((await client.embed({ model, input: ['a cat', 'tax law'] })).embeddings.length, 2);
  const names = (await client.list()).models.map((each) => each.name.replace(/:latest$/, ''));
  assert.ok(names.includes(model));
});

test('a model that is not there', async () => {
  await assert.rejects(client.chat({ model: 'huge', messages }), /huge/);
});
