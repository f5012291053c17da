#!/bin/sh
# Makes src/styles/fonts/*.woff2 from the fonts of node_modules: the letters of English, the weights that the page
# uses. Run it in ui/ after an update of @fontsource-variable; it needs fonttools and brotli (pip).
set -e
letters='U+0020-007E,U+00A0,U+00A7,U+00AB,U+00B0,U+00B1,U+00B7,U+00BB,U+00D7,U+2010-2026,U+2039,U+203A,U+20AC,U+2191,U+2193,U+2212'
for name in inter jetbrains-mono; do
  part=$(mktemp --suffix=.woff2)
  fonttools varLib.instancer -q "node_modules/@fontsource-variable/$name/files/$name-latin-wght-normal.woff2" wght=400:700 -o "$part"
  pyftsubset "$part" --unicodes="$letters" --flavor=woff2 --layout-features='kern,tnum,zero' --output-file="src/styles/fonts/$name-basic.woff2"
  rm "$part"
done
