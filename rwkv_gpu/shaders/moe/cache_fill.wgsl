// cache[slot] = w[expert] for each choice that must be copied      BLOCKS workgroups per choice
struct Copied {
    sources: vec4u,     // the start of each plane, in vec4s
    targets: vec4u,
    sizes: vec4u,       // vec4s of an expert in each plane
}

@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> cache: array<vec4u>;
@group(0) @binding(3) var<storage, read> fetch: array<u32>;             // [T * USED], as moe/cache_lookup writes it
@group(0) @binding(6) var<uniform> copied: Copied;

fn run(group: u32, lane: u32) {
    let n = group / BLOCKS;
    if n >= step.rows * USED {
        return;
    }
    let wanted = fetch[n];
    if wanted == 0u {
        return;
    }
    let expert = (wanted - 1u) / SLOTS;
    let slot = (wanted - 1u) % SLOTS;
    for (var p = 0u; p < 4u; p++) {
        let size = copied.sizes[p];
        for (var i = group % BLOCKS * WG + lane; i < size; i += BLOCKS * WG) {
            cache[copied.targets[p] + slot * size + i] = w[copied.sources[p] + expert * size + i];
        }
    }
}
