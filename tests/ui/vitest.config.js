export default {
  test: { include: ["modules/*.test.js"], environment: "jsdom" },
};
