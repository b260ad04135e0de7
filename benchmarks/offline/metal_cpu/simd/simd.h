// What shaders include of Apple's; all that they use is in metal_stdlib.
