// slot = w: copies weights from main memory to GPU memory      each lane copies EACH vec4s; neighbouring lanes copy
// neighbouring vec4s
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> slot: array<vec4u>;

fn run(group: u32, lane: u32) {
    for (var n = 0u; n < EACH; n++) {
        let i = (group * EACH + n) * WG + lane;
        if i < arrayLength(&w) {
            slot[i] = w[i];
        }
    }
}
