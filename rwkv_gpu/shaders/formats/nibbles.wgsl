// Runs of 32 by 16 bytes, byte j = n[j] | n[j+16] << 4.
fn low_nibbles(v: vec4u) -> vec4u { return v & vec4u(0x0f0f0f0fu); }        // n[0] .. n[15]

fn high_nibbles(v: vec4u) -> vec4u { return (v >> vec4u(4u)) & vec4u(0x0f0f0f0fu); }    // n[16] .. n[31]
