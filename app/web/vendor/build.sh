#!/bin/sh
# Make static/vendor/echarts.js again, with its licences and its checksum: once for each new version, by hand.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../static/vendor
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cp "$here/echarts_entry.js" "$work/entry.js"
cd "$work"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund echarts@6.1.0 esbuild@0.28.2
./node_modules/.bin/esbuild entry.js --bundle --format=esm --minify --legal-comments=none --outfile=echarts.js
{
  echo 'echarts.js is a build of Apache ECharts 6.1.0, which holds zrender and tslib.'
  for file in echarts/NOTICE echarts/LICENSE echarts/licenses/LICENSE-d3 zrender/LICENSE tslib/LICENSE.txt; do
    printf '\n==== %s\n\n' "$file"
    cat "node_modules/$file"
  done
} >echarts.LICENSE.txt
gzip -9 -n -k echarts.js
sha256sum echarts.js echarts.js.gz >echarts.sha256
cp echarts.js echarts.js.gz echarts.LICENSE.txt echarts.sha256 "$out"
