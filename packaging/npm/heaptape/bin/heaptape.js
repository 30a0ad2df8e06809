#!/usr/bin/env node
// Runs the command of this platform's package. `heaptape record -- node app.js` shows the names of
// JavaScript functions only if V8 writes them down and keeps interpreted functions on the native
// stack: both options are added here. HEAPTAPE_NODE_OPTIONS=0 leaves them out.
'use strict';
const { spawn } = require('node:child_process');
const { constants } = require('node:os');

const NODE_OPTIONS = ['--perf-basic-prof', '--interpreted-frames-native-stack'];
const platform = `${process.platform}-${process.arch}`;

function command() {
  try {
    return require.resolve(`@heaptape/${platform}/bin/heaptape`);
  } catch {
    console.error(`heaptape: there is no package for ${platform}: it runs on Linux on x86-64 and aarch64, with glibc 2.17 or later`);
    console.error('heaptape: if this is such a system, install without --no-optional');
    process.exit(2);
  }
}

function environment() {
  if (process.argv[2] !== 'record' || process.env.HEAPTAPE_NODE_OPTIONS === '0') return process.env;
  const given = process.env.NODE_OPTIONS ?? '';
  const missing = NODE_OPTIONS.filter((option) => !given.split(/\s+/).includes(option));
  return { ...process.env, NODE_OPTIONS: [given, ...missing].filter(Boolean).join(' ') };
}

const child = spawn(command(), process.argv.slice(2), { stdio: 'inherit', env: environment() });
// A terminal sends Ctrl-C to the child as well. Without one, a signal comes to this process only.
const isSent = (signal) => process.stdin.isTTY && ['SIGINT', 'SIGQUIT'].includes(signal);
for (const signal of ['SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGHUP', 'SIGUSR2']) {
  process.on(signal, () => isSent(signal) || child.kill(signal));
}
child.on('error', (error) => {
  console.error(`heaptape: ${error.message}`);
  process.exit(2);
});
child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
