/**
 * Builds the module for pages: one file from tornado_signal/web/client.js, and one for each part that it loads on demand.
 * Each has a source map and a form compressed by Brotli. A part imports nothing, because a page can load the main file by
 * two names, and would get a second copy. It is a function of the values that it needs from the file that loads it.
 */

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { brotliCompressSync } from "node:zlib";

const [packages, web, folder] = process.argv.slice(2).map((path) => resolve(path));
const { build } = createRequire(`${packages}/`)("esbuild");
const CLIENT = join(web, "client");
const ENTRY = join(web, "client.js");
const IMPORT = /^(?:import|export) \{([^}]*)\} from "\.(?:\/client)?\/([\w-]+\.js)";$/gm;
const ON_DEMAND = /\bimport\("\.\/([\w-]+)\.js"\)/g; // also in types within comments
const RESULT = "RETURN(";

const source = (path) => readFileSync(path, "utf8");
const importsOf = (path) =>
  [...source(path).matchAll(IMPORT)].map(([, names, from]) => [join(CLIENT, from), names.match(/[\w$]+/g)]);

/** Return the paths of a module and of all that it imports, without `others`. */
function closure(path, others = new Set(), found = new Set()) {
  if (found.has(path) || others.has(path)) return found;
  found.add(path);
  for (const [imported] of importsOf(path)) closure(imported, others, found);
  return found;
}

/** Build a text with the modules that `load` returns, write the result with its other forms, and return it. */
async function write(name, contents, load, options) {
  const setup = (api) => {
    api.onResolve({ filter: /^loader$/ }, ({ path }) => ({ path, namespace: path }));
    api.onLoad({ filter: /./, namespace: "loader" }, () => ({ contents: LOADER }));
    api.onLoad({ filter: /\.js$/ }, ({ path }) => load(path));
  };
  const { outputFiles } = await build({
    stdin: { contents, resolveDir: web, sourcefile: "built" },
    bundle: true,
    minify: true,
    format: "esm",
    outfile: join(web, name),
    sourcemap: true,
    sourcesContent: false, // pages can load the modules
    write: false,
    plugins: [{ name: "parts", setup }],
    ...options,
  });
  const [map, text] = outputFiles.map((file) => file.text.replace(RESULT, "return("));
  const path = join(folder, basename(name));
  writeFileSync(path, text);
  writeFileSync(`${path}.map`, map);
  writeFileSync(`${path}.br`, brotliCompressSync(text));
  return text;
}

const core = closure(ENTRY);
const parts = [...new Set([...core].flatMap((path) => [...source(path).matchAll(ON_DEMAND)].map(([, name]) => name)))];
const modules = Object.fromEntries(parts.map((name) => [name, [...closure(join(CLIENT, `${name}.js`), core)]]));
const wanted = (paths) => paths.flatMap(importsOf).filter(([path]) => core.has(path));
const given = new Map(
  wanted(Object.values(modules).flat()).flatMap(([path, names]) => names.map((name) => [name, path])),
);
const order = [...given.keys()].sort();
const variable = order.filter((name) => source(given.get(name)).includes(`export let ${name}`));
if (variable.length) throw new Error(`A part gets the values at its time of loading; export functions for ${variable}`);

// A browser does not request the same URL again.
const LOADER = `
  const loaded = {};
  let failures = 0;
  let core;
  export const give = (values) => { core = values; };
  export function load(name) {
    const path = "./client/" + name + (failures ? "?" + failures : "");
    return (loaded[name] ??= import(path).then(
      (part) => part.default(core),
      (error) => {
        failures += 1;
        delete loaded[name];
        throw error;
      },
    ));
  }`;
const giving = [
  ...[...given].map(([name, path]) => `import { ${name} } from "./client/${basename(path)}";`),
  'import { give } from "loader";',
  `give([${order}]);`,
];
const versions = {};
const withParts = (path) =>
  `import { load as LOAD } from "loader"; ${source(path).replace(ON_DEMAND, (_, part) => `LOAD("${versions[part]}")`)}`;

rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
for (const part of parts) {
  const exported = Object.keys(await import(pathToFileURL(join(CLIENT, `${part}.js`))));
  const placeholders = (path) => {
    const names = new Set(wanted(modules[part]).flatMap(([from, each]) => (from === path ? each : [])));
    return [...names].map((name) => `export const ${name} = core[${order.indexOf(name)}];`).join("");
  };
  const text = await write(
    `client/${part}.js`,
    `import { ${exported} } from "./client/${part}.js"; ${RESULT}{ ${exported} })`,
    (path) => (core.has(path) ? { contents: placeholders(path) } : undefined),
    { banner: { js: "export default core=>{" }, footer: { js: "}" } },
  );
  versions[part] = `${part}-${createHash("sha256").update(text).digest("hex").slice(0, 8)}.js`;
}
await write("client.js", source(ENTRY) + giving.join("\n"), (path) => ({ contents: withParts(path) }));
