// Vercel's AI SDK, by its provider for endpoints like this one and by its provider for OpenAI.
import assert from "node:assert/strict";
import test from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import { z } from "zod";

const name = process.env.ENDPOINT_MODEL;
const [baseURL, apiKey] = [process.env.OPENAI_BASE_URL, process.env.OPENAI_API_KEY];
const compatible = createOpenAICompatible({
  name: "mtplx",
  baseURL,
  apiKey,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const models = {
  "openai-compatible": compatible.chatModel(name),
  openai: createOpenAI({ baseURL, apiKey }).chat(name),
};
const common = { temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
const prompt = "Name a river.";

for (const [provider, model] of Object.entries(models)) {
  test(`${provider}: generates`, async () => {
    const { text, usage, finishReason } = await ai.generateText({ ...common, model, prompt });
    assert.ok(text.length > 0);
    assert.ok(["stop", "length"].includes(finishReason));
    assert.ok(usage.outputTokens > 0 && usage.outputTokens <= 12);
  });

  test(`${provider}: streams what it says at once`, async () => {
    const { text } = await ai.generateText({ ...common, model, prompt });
    const stream = ai.streamText({ ...common, model, prompt });
    let said = "";
    for await (const piece of stream.textStream) said += piece;
    assert.equal(said, text);
    assert.ok((await stream.usage).outputTokens > 0);
  });

  test(`${provider}: system and earlier messages are taken`, async () => {
    const { text } = await ai.generateText({
      ...common,
      model,
      instructions: "You are brief.",
      messages: [
        { role: "user", content: "Hello" },
        { role: "assistant", content: "Hi." },
        { role: "user", content: [{ type: "text", text: prompt }] },
      ],
    });
    assert.ok(text.length > 0);
  });

  test(`${provider}: an aborted stream ends`, async () => {
    const abort = new AbortController();
    const stream = ai.streamText({
      ...common,
      maxOutputTokens: 500,
      model,
      prompt,
      abortSignal: abort.signal,
      onError: () => {},
    });
    let pieces = 0;
    for await (const _ of stream.textStream) if (++pieces === 3) abort.abort();
    assert.ok(pieces >= 3 && pieces < 500);
  });

  test(`${provider}: errors are told`, async () => {
    const wrong = ai.generateText({ ...common, model, prompt, maxOutputTokens: 10_000_000 });
    await assert.rejects(wrong, (error) => {
      assert.ok(ai.APICallError.isInstance(error));
      assert.equal(error.statusCode, 400);
      assert.equal(error.isRetryable, false);
      return true;
    });
  });

  test(`${provider}: a schema is kept to`, async () => {
    const schema = z.object({ colour: z.enum(["red", "green"]), certain: z.boolean() });
    const { output } = await ai.generateText({
      ...common,
      maxOutputTokens: 60,
      model,
      prompt: "Which colour has grass?",
      output: ai.Output.object({ schema }),
    });
    assert.ok(schema.safeParse(output).success);
  });

  test(`${provider}: a tool is called`, async () => {
    const cities = [];
    const weather = ai.tool({
      description: "The weather of a city",
      inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
      execute: async ({ city }) => {
        cities.push(city);
        return "sunny";
      },
    });
    const { toolCalls, finishReason } = await ai.generateText({
      ...common,
      maxOutputTokens: 60,
      model,
      prompt: "What is the weather in Paris?",
      tools: { weather },
      toolChoice: "required",
      providerOptions: {
        openai: { parallelToolCalls: false },
        mtplx: { parallel_tool_calls: false },
      },
    });
    assert.equal(finishReason, "tool-calls");
    assert.equal(toolCalls[0].toolName, "weather");
    assert.deepEqual(cities, [toolCalls[0].input.city]);
  });

  test(`${provider}: a tool is called in a stream`, async () => {
    const stream = ai.streamText({
      ...common,
      maxOutputTokens: 60,
      model,
      prompt: "What is the weather in Paris?",
      tools: {
        weather: ai.tool({ inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }) }),
      },
      toolChoice: { type: "tool", toolName: "weather" },
    });
    const [call] = await stream.toolCalls;
    assert.ok(["Paris", "Rome"].includes(call.input.city));
    assert.equal(await stream.finishReason, "tool-calls");
  });
}
