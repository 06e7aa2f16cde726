// Packs the client's package, and for each platform a package with the program toolfleet, into
// the current folder. It publishes nothing.
//
//     node clients/typescript/scripts/pack.mjs                      all platforms
//     node clients/typescript/scripts/pack.mjs linux-x64            some of them
//
// `tsc` makes the types. It must be in PATH, or named by TSC. It finds the SDKs that the
// adapters are for in node_modules of the current folder or a folder above.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

const source = fileURLToPath(new URL("..", import.meta.url));
const repository = path.resolve(source, "../..");
const all = ["darwin-arm64", "darwin-x64", "linux-arm64", "linux-x64"];
const platforms = process.argv.length > 2 ? process.argv.slice(2) : all;
const run = (command, args, options) => execFileSync(command, args, { stdio: ["ignore", "inherit", "inherit"], ...options });
const work = path.resolve("packing");
fs.mkdirSync(work);

const manifest = JSON.parse(fs.readFileSync(path.join(source, "package.json"), "utf8"));
const { version, license } = manifest;

for (const platform of platforms) {
  const [os, cpu] = platform.split("-");
  const dir = path.join(work, platform);
  run("go", ["build", "-trimpath", "-ldflags=-s -w", "-o", path.join(dir, "bin", "toolfleet"), "./cmd/toolfleet"], {
    cwd: repository, env: { ...process.env, CGO_ENABLED: "0", GOOS: os, GOARCH: cpu === "x64" ? "amd64" : cpu },
  });
  const about = { name: `@toolfleet/${platform}`, version, license, description: `The command toolfleet for ${platform}.`, os: [os], cpu: [cpu], files: ["bin"] };
  fs.writeFileSync(path.join(dir, "package.json"), JSON.stringify(about, null, 2));
  run("npm", ["pack", "--silent", dir]);
}

const dir = path.join(work, "toolfleet");
for (const part of ["src", "bin", "tsconfig.json", "README.md"]) fs.cpSync(path.join(source, part), path.join(dir, part), { recursive: true });
fs.cpSync(path.join(repository, "LICENSE"), path.join(dir, "LICENSE"));
run(process.env.TSC ?? "tsc", ["-p", dir]);
// npm installs the one of these packages that fits the machine.
const commands = { optionalDependencies: Object.fromEntries(platforms.map((platform) => [`@toolfleet/${platform}`, version])) };
fs.writeFileSync(path.join(dir, "package.json"), JSON.stringify({ ...manifest, ...commands }, null, 2));
run("npm", ["pack", "--silent", dir]);
fs.rmSync(work, { recursive: true });
