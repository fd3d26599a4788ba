// JupyterLab's packages are ES modules: they are compiled for the tests, too.
const esm = [
  '@jupyterlab/',
  '@jupyter/',
  '@microsoft/',
  '@rjsf/',
  'exenv-es6',
  'lib0',
  'nanoid',
  'vscode-ws-jsonrpc',
  'y-protocols',
  'y-websocket',
  'yjs'
].join('|');

module.exports = {
  testEnvironment: 'jsdom',
  testTimeout: 60_000, // one slow machine, many tests
  setupFiles: ['<rootDir>/src/__tests__/setup.js'],
  testMatch: ['<rootDir>/src/**/__tests__/*.spec.ts', '<rootDir>/src/**/__tests__/*.spec.tsx'],
  transform: {
    '\\.(j|t)sx?$': ['@swc/jest', { jsc: { target: 'es2022' }, module: { type: 'commonjs' } }]
  },
  transformIgnorePatterns: [`/node_modules/(?!(${esm}))`],
  moduleNameMapper: {
    '\\.(css|less)$': '<rootDir>/src/__tests__/nothing.js',
    '\\.svg$': '<rootDir>/src/__tests__/icon.js'
  }
};
