// The manifests of deploy/kubernetes: every field against the schemas that Kubernetes, the Gateway API, its inference
// extension and llm-d publish; what the files say of each other; and a server with the options that they give it.
//
//   --deploy FOLDER   deploy/kubernetes
//   --server PATH     the program
import Ajv from 'ajv';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import typescript from 'typescript';
import { parse, parseAllDocuments } from 'yaml';
import { ask, get, option, start, temporaryFolder } from './support.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
const folder = path.resolve(option('deploy'));

// ---- the files ------------------------------------------------------------------------------------------------------

/** Files under the folder with their documents: {file: [document]}. */
const files = {};
for (const entry of fs.readdirSync(folder, { recursive: true, withFileTypes: true })) {
  if (!entry.isFile()) continue;
  const file = path.relative(folder, path.join(entry.parentPath ?? entry.path, entry.name));
  assert.match(file, /\.yaml$/, 'nothing but manifests here');
  files[file] = parseAllDocuments(fs.readFileSync(path.join(folder, file), 'utf8'), { strict: true }).map((document) => {
    assert.deepEqual([...document.errors, ...document.warnings], [], file);
    return document.toJS();
  });
}
const only = (file) => {
  assert.equal(files[file]?.length, 1, `${file}: one document`);
  return structuredClone(files[file][0]);
};

// ---- the schemas ----------------------------------------------------------------------------------------------------

const ajv = new Ajv({ allErrors: true, strictTypes: false });
ajv.addSchema({ ...JSON.parse(fs.readFileSync(path.join(here, 'schemas.json'), 'utf8')), $id: 'ours' });
const ours = (name) => ajv.getSchema(`ours#/definitions/${encodeURIComponent(name).replaceAll('%2F', '~1')}`);

/** The published module of a kind, or null: kubernetes-models has Kubernetes' own OpenAPI, gateway-api its CRDs. */
function published({ apiVersion, kind }) {
  for (const name of ['kubernetes-models', '@kubernetes-models/gateway-api']) {
    const file = path.join(here, 'node_modules', name, apiVersion, `${kind}.js`);
    if (fs.existsSync(file)) return { file, specifier: `${name}/${apiVersion}/${kind}` };
  }
  return null;
}

/** Unknown fields and wrong types of documents, by the published types: a message or '' for each. */
function typed(documents) {
  const lines = documents.map(({ kind, ...rest }, i) =>
    `import type { I${kind} as T${i} } from '${published({ kind, ...rest }).specifier}'; export const d${i}: T${i} = ${JSON.stringify({ kind, ...rest })};`);
  const file = path.join(here, 'documents.ts');
  fs.writeFileSync(file, `${lines.join('\n')}\n`);
  const { ModuleKind, ModuleResolutionKind, ScriptTarget } = typescript;
  const compiled = typescript.createProgram([file], {
    noEmit: true, strict: true, skipLibCheck: true, types: [], target: ScriptTarget.ES2022, module: ModuleKind.NodeNext,
    moduleResolution: ModuleResolutionKind.NodeNext,
  });
  const messages = documents.map(() => '');
  for (const one of typescript.getPreEmitDiagnostics(compiled)) {
    const text = typescript.flattenDiagnosticMessageText(one.messageText, ' ');
    assert.equal(one.file?.fileName, file, text);
    messages[one.file.getLineAndCharacterOfPosition(one.start).line] += `${text} `;
  }
  return messages;
}

/** Missing fields, patterns and bounds of a document, by the published schema: a message or ''. */
async function validated(document) {
  const { file } = published(document);
  const Model = (await import(pathToFileURL(file)))[document.kind];
  try {
    new Model(structuredClone(document)).validate();
    return '';
  } catch (error) {
    return error.message;
  }
}

/** What is wrong with each of [what, document]: '' or a message. `what` names a schema of ours where the document does not. */
async function check(list) {
  const results = list.map(() => '');
  const foreign = [];
  for (const [i, [what, document]] of list.entries()) {
    const validate = ours(what ?? `${document.apiVersion} ${document.kind}`);
    if (validate) {
      if (!validate(document)) results[i] = ajv.errorsText(validate.errors);
    } else if (published(document)) {
      foreign.push(i);
    } else {
      results[i] = `no schema of ${document.apiVersion} ${document.kind}`;
    }
  }
  const types = typed(foreign.map((i) => list[i][1]));
  for (const [k, i] of foreign.entries()) results[i] = types[k] + (await validated(list[i][1]));
  return results;
}

const schemaOf = (file) => (path.basename(file) === 'values.yaml' ? 'values' : undefined);
const pickerConfig = () => {
  const { inferenceExtension: e } = only('llm-d/values.yaml');
  return parse(e.pluginsCustomConfig[e.pluginsConfigFile]);
};

test('every field of every manifest is one that its schema has', async () => {
  const list = [];
  for (const [file, documents] of Object.entries(files)) for (const document of documents) list.push([file, document]);
  const wrong = await check([...list.map(([file, document]) => [schemaOf(file), document]), [undefined, pickerConfig()]]);
  assert.ok(list.length > 12);
  assert.deepEqual(wrong.map((message, i) => message && `${list[i]?.[0] ?? 'the picker'}: ${message}`).filter(Boolean), []);
});

test('planted mistakes are found', async () => {
  const plants = [
    ['base/deployment.yaml', (d) => (d.spec.template.spec.containers[0].livenessProb = {})],
    ['base/deployment.yaml', (d) => (d.spec.replicas = '3')],
    ['base/deployment.yaml', (d) => delete d.spec.selector],
    ['base/deployment.yaml', (d) => (d.spec.template.spec.terminationGracePeriod = 3)],
    ['base/deployment.yaml', (d) => (d.spec.template.spec.containers[0].lifecycle.preStop.sleep.second = 5)],
    ['base/deployment.yaml', (d) => (d.spec.template.spec.volumes[1].secret.name = 'x')],
    ['base/deployment.yaml', (d) => (d.spec.template.spec.containers[0].securityContext.readOnlyRootFileSystem = true)],
    ['base/service.yaml', (d) => (d.spec.ports[0].target = 'http')],
    ['base/service.yaml', (d) => delete d.spec.ports[0].port],
    ['base/config.yaml', (d) => (d.data.port = 8080)],
    ['base/autoscaler.yaml', (d) => (d.spec.metrics[0].pods.metrics = {})],
    ['base/autoscaler.yaml', (d) => delete d.spec.maxReplicas],
    ['base/autoscaler.yaml', (d) => (d.apiVersion = 'autoscaling/v3')],
    ['base/disruption.yaml', (d) => (d.spec.maxAvailable = 1)],
    ['gateway/route.yaml', (d) => (d.spec.rules[0].timeout = {})],
    ['gateway/route.yaml', (d) => (d.spec.rules[0].timeouts.request = '5 minutes')],
    ['gateway/route.yaml', (d) => (d.spec.rules[0].matches[0].path.type = 'Prefix')],
    ['gateway/pool.yaml', (d) => (d.spec.targetPorts[0] = { port: 8080 })],
    ['gateway/pool.yaml', (d) => (d.spec.targetPortNumber = 8080)],
    ['gateway/pool.yaml', (d) => delete d.spec.endpointPickerRef.port],
    ['gateway/pool.yaml', (d) => (d.spec.endpointPickerRef.failureMode = 'FailClosed')],
    ['gateway/kustomization.yaml', (d) => (d.resource = [])],
    ['llm-d/objectives.yaml', (d) => (d.spec.priority = 'high')],
    ['llm-d/objectives.yaml', (d) => delete d.spec.poolRef],
    ['llm-d/values.yaml', (d) => (d.inferencePool.targetPort = 8080)],
    ['llm-d/values.yaml', (d) => (d.inferencePool.modelServerType = 'sluice')],
  ];
  const list = plants.map(([file, plant]) => {
    const document = structuredClone(files[file][0]);
    plant(document);
    return [schemaOf(file), document];
  });
  const picker = pickerConfig();
  picker.plugins[0].type = 'approx-prefix-cache';
  const wrong = await check([...list, [undefined, picker]]);
  const missed = wrong.flatMap((message, i) => (message ? [] : `${plants[i]?.[0] ?? 'the picker'}, plant ${i}`));
  assert.deepEqual(missed, []);
});

// ---- what they say of each other ------------------------------------------------------------------------------------

const deployment = only('base/deployment.yaml');
const pod = deployment.spec.template;
const [container] = pod.spec.containers;
const config = JSON.parse(only('base/config.yaml').data['serve.json']);

test('kustomizations name the files that are there', () => {
  for (const place of ['base', 'gateway', 'llm-d']) {
    const { resources } = only(`${place}/kustomization.yaml`);
    const there = Object.keys(files).filter((file) => path.dirname(file) === place).map((file) => path.basename(file));
    const apart = ['kustomization.yaml', 'values.yaml'];
    assert.deepEqual(resources.filter((name) => name !== '../base').sort(), there.filter((name) => !apart.includes(name)).sort());
    assert.equal(resources.includes('../base'), place !== 'base');
  }
  assert.equal(only('base/kustomization.yaml').images[0].name, container.image);
});

test('names, ports, labels and paths fit together', () => {
  const within = (selector, labels) => Object.entries(selector).every(([key, value]) => labels[key] === value);
  assert.ok(within(deployment.spec.selector.matchLabels, pod.metadata.labels));
  assert.ok(within(only('base/service.yaml').spec.selector, pod.metadata.labels));
  assert.ok(within(only('base/disruption.yaml').spec.selector.matchLabels, pod.metadata.labels));
  assert.ok(within(only('gateway/pool.yaml').spec.selector.matchLabels, pod.metadata.labels));
  assert.ok(within(only('llm-d/values.yaml').inferencePool.modelServers.matchLabels, pod.metadata.labels));
  const ports = [config.port];
  assert.deepEqual(container.ports.map((port) => port.containerPort), ports);
  assert.deepEqual(only('gateway/pool.yaml').spec.targetPorts.map((port) => port.number), ports);
  assert.deepEqual(only('llm-d/values.yaml').inferencePool.targetPorts.map((port) => port.number), ports);
  assert.equal(pod.metadata.annotations['prometheus.io/port'], String(config.port));
  const named = container.ports.map((port) => port.name);
  assert.ok(named.includes(only('base/service.yaml').spec.ports[0].targetPort));
  for (const probe of ['startupProbe', 'readinessProbe', 'livenessProbe']) assert.ok(named.includes(container[probe].httpGet.port));
  for (const place of ['gateway', 'llm-d']) {
    for (const { backendRefs } of only(`${place}/route.yaml`).spec.rules) {
      assert.deepEqual(backendRefs.map(({ name, port }) => [name, port]), [[only('gateway/pool.yaml').metadata.name, config.port]]);
    }
  }
  for (const { spec } of files['llm-d/objectives.yaml']) assert.equal(spec.poolRef.name, only('gateway/pool.yaml').metadata.name);
  assert.equal(only('base/autoscaler.yaml').spec.scaleTargetRef.name, deployment.metadata.name);
  const volume = (name) => pod.spec.volumes.find((one) => one.name === name);
  const mount = (name) => container.volumeMounts.find((one) => one.name === name);
  assert.equal(volume('config').configMap.name, only('base/config.yaml').metadata.name);
  assert.equal(volume('keys').secret.secretName, only('base/keys.yaml').metadata.name);
  assert.equal(volume('models').persistentVolumeClaim.claimName, only('base/models.yaml').metadata.name);
  assert.deepEqual(container.volumeMounts.map((one) => one.name).sort(), pod.spec.volumes.map((one) => one.name).sort());
  assert.equal(container.args[container.args.indexOf('--config') + 1], path.join(mount('config').mountPath, 'serve.json'));
  assert.equal(path.dirname(config['api-key-file']), mount('keys').mountPath);
  assert.deepEqual(Object.keys(only('base/keys.yaml').stringData), [path.basename(config['api-key-file'])]);
  assert.equal(path.dirname(config.model[0]), mount('models').mountPath);
  assert.equal(path.dirname(config['cache-disk']), mount('beginnings').mountPath);
  assert.ok(!mount('beginnings').readOnly, 'the only place that is written to');
  const profile = pickerConfig();
  const plugins = profile.plugins.map(({ name, type }) => name ?? type);
  for (const { plugins: used } of profile.schedulingProfiles) for (const { pluginRef } of used) assert.ok(plugins.includes(pluginRef), pluginRef);
});

test('a pod has the time that its server takes to end', () => {
  const { seconds } = container.lifecycle.preStop.sleep;
  const BROKEN_OFF = 5; // that is what the server takes for what is left then
  assert.ok(pod.spec.terminationGracePeriodSeconds >= seconds + config['drain-delay'] + config['drain-timeout'] + BROKEN_OFF);
  const { periodSeconds, failureThreshold, timeoutSeconds } = container.readinessProbe;
  assert.ok(config['drain-delay'] > periodSeconds * failureThreshold + timeoutSeconds, 'a probe sees the 503 before it is over');
});

test('the server takes these options, and answers the probes and the scraper without a key', async () => {
  const own = temporaryFolder();
  const keys = path.join(own, 'keys');
  fs.writeFileSync(keys, only('base/keys.yaml').stringData.keys);
  const file = path.join(own, 'serve.json');
  fs.writeFileSync(file, JSON.stringify({
    ...config, host: undefined, port: undefined, model: ['mini'], 'api-key-file': keys, 'cache-disk': path.join(own, 'beginnings'),
    'ctx-size': 512, sequences: 2, 'drain-delay': 0.1,
  }));
  const server = await start({ args: ['--config', file, '--threads', '1'] });
  for (const probe of ['startupProbe', 'readinessProbe', 'livenessProbe']) {
    assert.equal((await ask(server, container[probe].httpGet.path)).status, 200, probe);
  }
  const metrics = await ask(server, pod.metadata.annotations['prometheus.io/path']);
  assert.equal(metrics.status, 200);
  assert.match(metrics.text, /^vllm:num_requests_waiting\{/m);
  assert.equal((await ask(server, '/v1/models')).status, 401);
  server.key = fs.readFileSync(keys, 'utf8').trim();
  assert.deepEqual((await get(server, '/v1/models')).data.map((model) => model.id), config.alias);
  await server.stop();
});
