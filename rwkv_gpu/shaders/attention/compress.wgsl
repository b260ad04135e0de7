// y[t, n] = sum_j p_j v_j, p = softmax_j(g_j + bias[position of j mod RATIO]), for rows that complete a block      one lane per vec4
//
// A row of the cache is [v | g]. With two BLOCKS, j also runs over the block before, whose v and g are the first N numbers.
// needs latent read: latent4; pages of rows: segment_of
@group(0) @binding(1) var<storage, read> bias: array<vec4f>;            // [RATIO, BLOCKS · N / 4]
@group(0) @binding(2) var<storage, read_write> y: array<vec4f>;         // [T, N / 4]
@group(0) @binding(4) var<storage, read> places: array<vec2u>;          // [T] of position, row of all pages
@group(0) @binding(5) var<storage, read> keys: array<vec4u>;            // [pages, PAGE, 2 · BLOCKS · N]
@group(0) @binding(7) var<storage, read> pages: array<u32>;             // [S, MAX_PAGES]

const N4 = N / 4u;
const HALF = BLOCKS * N4;

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let t = i / N4;
    if t >= step.rows {
        return;
    }
    let end = places[t].x + 1u;
    var total = vec4f();
    var sum = vec4f();
    var most = vec4f(-1e38);
    if end % RATIO == 0u {
        for (var j = select(0u, RATIO * BLOCKS - end, end < RATIO * BLOCKS); j < RATIO * BLOCKS; j++) {
            let position = end + j - RATIO * BLOCKS;
            let row = pages[segment_of(t) * MAX_PAGES + position / PAGE] * PAGE + position % PAGE;
            let column = j / RATIO * N4 + i % N4;
            let gate = latent4(row * 2u * HALF + HALF + column) + bias[j % RATIO * HALF + column];
            let top = max(most, gate);
            let fade = exp(most - top);
            let p = exp(gate - top);
            total = fma(p, latent4(row * 2u * HALF + column), fade * total);
            sum = fma(fade, sum, p);
            most = top;
        }
        total /= sum;
    }
    y[i] = total;
}
