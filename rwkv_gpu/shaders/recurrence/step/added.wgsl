// S + v kᵀ after the decay; r reads the old S, and the new token by its bonus, or the new S
// needs decay: decay_at
// needs inputs: bonus_of
// needs row sum: row_add
// needs tile: Rows, grow, load_v, times
fn advance(s: ptr<function, array<Tile, COLUMNS>>, token: u32, base: u32, row: u32) -> Rows {
    let v = load_v(token * N + row);
    var out = Rows(0.0);
    for (var c = 0u; c < COLUMNS; c += 4u) {
        out += advance_tile(s, c, token, base, v);
        out += advance_tile(s, c + 1u, token, base, v);
        out += advance_tile(s, c + 2u, token, base, v);
        out += advance_tile(s, c + 3u, token, base, v);
    }
    return row_add(out) + bonus_of(token) * v;
}

fn advance_tile(s: ptr<function, array<Tile, COLUMNS>>, c: u32, token: u32, base: u32, v: Rows) -> Rows {
    let j = base + c * SPLIT;
    let old = (*s)[c];
    let now = grow(old, decay_at(token, j), block_k[j], v);
    (*s)[c] = now;
    if READS_OLD != 0u {
        return times(old, block_r[j]);
    }
    return times(now, block_r[j]);
}
