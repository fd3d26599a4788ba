import js from '@eslint/js';
import prettier from 'eslint-config-prettier';
import hooks from 'eslint-plugin-react-hooks';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  { ignores: ['lib/**', 'node_modules/**', '**/*.js', '*.config.*'] },
  js.configs.recommended,
  ...tseslint.configs.strictTypeChecked,
  {
    files: ['src/**/*.{ts,tsx}'],
    plugins: { 'react-hooks': hooks },
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname }
    },
    rules: {
      ...hooks.configs.recommended.rules,
      // A slot is connected with its `this` beside it.
      '@typescript-eslint/unbound-method': 'off',
      // React's handlers, Lumino's slots: a promise that is not waited for is said so with `void`.
      '@typescript-eslint/no-misused-promises': ['error', { checksVoidReturn: false }],
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      '@typescript-eslint/no-confusing-void-expression': 'off',
      '@typescript-eslint/no-invalid-void-type': 'off'
    }
  },
  // What needs types takes most of the time, and finds least in tests; tsc reads them, too.
  { files: ['src/**/__tests__/**'], ...tseslint.configs.disableTypeChecked },
  prettier
);
