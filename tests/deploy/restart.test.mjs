// `systemctl restart sluice` with sluice.socket loses nobody: the socket outlives the server, so who comes meanwhile waits. This
// stands in for systemd: it holds the socket, ends one server with SIGTERM, and starts the next on the same socket.
//
//   node restart.test.mjs [--server PATH]
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { ask, chatBody, endless, program, Server, sleep, stream, SUM, until } from '../server/support.mjs';

if (spawnSync('python3', ['--version']).error) {
  console.log('skipped: python3 is not installed');
  process.exit(77);
}

// sd_listen_fds(3): descriptor 3 is the socket, LISTEN_PID who it is for. A line on stdin is a restart, its end the end.
const systemd = `
import os, signal, socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
os.dup2(listener.fileno(), 3)
print("port", listener.getsockname()[1], flush=True)
command = 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
while True:
    child = subprocess.Popen(["sh", "-c", command, "sh"] + sys.argv[1:], pass_fds=[3], stdin=subprocess.DEVNULL)
    line = sys.stdin.readline()
    child.send_signal(signal.SIGTERM)
    print("ended", child.wait(), flush=True)
    if not line:
        break
`;

// A child that is left would keep this program alive: its end closes the pipe, which ends the server.
let supervisor;
after(() => supervisor?.stdin.end());

test('requests before, during and after a restart are all answered', async () => {
  supervisor = spawn('python3', ['-c', systemd, program, 'serve', '--drain-timeout', '60'], { stdio: ['pipe', 'pipe', 'pipe'] });
  const server = new Server(supervisor);
  const ends = () => server.output.split('\n').filter((line) => line.startsWith('ended '));
  const readies = () => server.errors.split('\n').filter((line) => /\bready: /.test(line)).length;
  server.port = Number((await until('the port', () => /^port (\d+)$/m.exec(server.output)))[1]);
  await until('the first server', () => readies() === 1);
  // Runs while the server is told to end, and is answered by it to the end.
  const long = stream(server, '/v1/chat/completions', endless({ max_tokens: 1500 }));
  await sleep(100);
  supervisor.stdin.write('restart\n');
  const answers = [];
  for (let i = 0; i < 150; i++) { // also in the moment in which the signal comes
    answers.push(ask(server, '/v1/chat/completions', { body: chatBody(SUM.question), headers: { connection: 'close' } }));
    await sleep(5);
  }
  const { chunks, done } = await long;
  assert.ok(done, 'the stream ends as it should');
  assert.equal(chunks.findLast((chunk) => chunk.choices[0]?.finish_reason).choices[0].finish_reason, 'length');
  for (const answer of await Promise.all(answers)) {
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.json.choices[0].message.content, SUM.answer);
  }
  assert.deepEqual(ends(), ['ended 0'], 'there was a restart');
  assert.equal(readies(), 2);
  supervisor.stdin.end();
  await server.ended;
  assert.deepEqual(ends(), ['ended 0', 'ended 0']);
});
