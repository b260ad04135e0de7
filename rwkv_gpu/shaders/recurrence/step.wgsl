// One step of the state.

//# added: S + v kᵀ after the decay. r reads the old S plus the new token times its bonus, or the new S.
// needs decay: decay_at; inputs: bonus_of; row sum: row_add; tile: Rows, grow, load_v, times
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

//# delta_rule: d = (v - S k) β after the decay. r reads S + d kᵀ.
// needs decay: decay_at, past_key, past_scale; inputs: rate_of; row sum: row_add; tile: Rows, grow, load_v, times
fn advance(s: ptr<function, array<Tile, COLUMNS>>, token: u32, base: u32, row: u32) -> Rows {
    var seen = Rows(0.0);
    for (var c = 0u; c < COLUMNS; c += 4u) {
        seen += times((*s)[c], seen_key(base + c * SPLIT));
        seen += times((*s)[c + 1u], seen_key(base + (c + 1u) * SPLIT));
        seen += times((*s)[c + 2u], seen_key(base + (c + 2u) * SPLIT));
        seen += times((*s)[c + 3u], seen_key(base + (c + 3u) * SPLIT));
    }
    let d = (load_v(token * N + row) - row_add(seen) * past_scale(token)) * rate_of(token);
    var out = Rows(0.0);
    for (var c = 0u; c < COLUMNS; c += 4u) {
        out += advance_tile(s, c, token, base, d);
        out += advance_tile(s, c + 1u, token, base, d);
        out += advance_tile(s, c + 2u, token, base, d);
        out += advance_tile(s, c + 3u, token, base, d);
    }
    return row_add(out);
}

fn advance_tile(s: ptr<function, array<Tile, COLUMNS>>, c: u32, token: u32, base: u32, d: Rows) -> Rows {
    let j = base + c * SPLIT;
    let now = grow((*s)[c], decay_at(token, j), block_k[j], d);
    (*s)[c] = now;
    return times(now, block_r[j]);
}

fn seen_key(i: u32) -> vec4f { return past_key(i, block_k[i]); }
