"""The form of published files: the tokenizer that llama.cpp's converter writes for a family's reference model.

A line names the architecture, the golden model with its weights, the reference model, the kind of tokenizer and its
pre-tokenizer, and the special tokens by role. The last column lists tokens that are added to a text (b, e, s); a
capital letter states that one is not added.
"""

from dataclasses import dataclass

from rwkv_gpu.text.bpe import BYTE_LETTERS
from tests.gguf.parts import Parts, Row, take_apart
from tests.gguf.writer import ARRAY, BOOL, F32, I32, STRING, U32
from tests.golden_files import OWN
from tests.models.headers import header_of, with_keys, with_tensors
from tests.models.turns import TURNS
from tests.text import template_matrix
from tests.text.vocabularies import CONTROL, NORMAL, Kind

BERT = "padding=[PAD] unknown=[UNK] bos=[CLS] eos=[SEP] seperator=[SEP] mask=[MASK]"
T5 = "padding=<pad> eos=</s> unknown=<unk>"
MODERN = "unknown=[UNK] bos=[CLS] eos=[SEP] seperator=[SEP] padding=[PAD] mask=[MASK]"
ROBERTA = "bos=<s> padding=<pad> eos=</s> seperator=</s> unknown=<unk> mask=<mask>"
GEMMA = "padding=<pad> eos=<eos> bos=<bos> unknown=<unk> -=<start_of_turn> -=<end_of_turn>"
GEMMA4 = "padding=<pad> eos=<eos> bos=<bos> unknown=<unk> mask=<mask> eot=<turn|> -=<|turn>"
LLAMA = "unknown=<unk> bos=<s> eos=</s>"
LLAMA3 = "bos=<|begin_of_text|> eos=<|eot_id|> -=<|start_header_id|> -=<|end_header_id|> -=<|end_of_text|>"
QWEN = "bos=<|endoftext|> eos=<|im_end|> padding=<|endoftext|> -=<|im_start|>"
NEOX = "bos=<|endoftext|> eos=<|endoftext|> unknown=<|endoftext|>"
DEEPSEEK = "bos=<｜begin▁of▁sentence｜> eos=<｜end▁of▁sentence｜> -=<｜User｜> -=<｜Assistant｜>"
GRANITE = "bos=<|end_of_text|> eos=<|end_of_text|> -=<|start_of_role|> -=<|end_of_role|>"
PLAMO = "unknown=<|plamo:unk|> bos=<|plamo:bos|> eos=<|plamo:eos|> padding=<|plamo:pad|> eot=<|plamo:op|>"
LING = "bos=<|startoftext|> eos=<|endoftext|> padding=<|endoftext|> -=<role>"

FORMS = f"""
bert             bert             BAAI/bge-small-en-v1.5                   bert  jina-v2-en    bes {BERT}
bert             bert             BAAI/bge-m3                              t5    default       bes {ROBERTA}
bert             bert             sentence-transformers/stsb-roberta-base  gpt2  roberta-bpe   bes {ROBERTA}
nomic-bert       nomic-bert       nomic-ai/nomic-embed-text-v1.5           bert  jina-v2-en    bes {BERT}
nomic-bert-moe   nomic-bert-moe   nomic-ai/nomic-embed-text-v2-moe         t5    default       bes {ROBERTA}
jina-bert-v2     jina-bert-v2     jinaai/jina-embeddings-v2-base-en        bert  jina-v2-en    be  {BERT}
jina-bert-v2     normed-jina-bert-v2 jinaai/jina-embeddings-v2-base-code   gpt2  jina-v2-code  bes {ROBERTA}
jina-bert-v2     jina-bert-v2     jinaai/jina-embeddings-v2-base-de        gpt2  jina-v2-de    be  {ROBERTA}
jina-bert-v3     jina-bert-v3     jinaai/jina-embeddings-v3                t5    default       bes {ROBERTA}
modern-bert      modern-bert      answerdotai/ModernBERT-base              gpt2  modern-bert   bes {MODERN}
modern-bert      modern-bert      Alibaba-NLP/gte-modernbert-base          gpt2  modern-bert   bes {MODERN}
modern-bert      modern-bert      ibm-granite/granite-embedding-english-r2 gpt2  modern-bert   bes {MODERN}
modern-bert      silu-modern-bert ibm-granite/granite-embedding-97m-multilingual-r2 gpt2 granite-embed-multi-97m bes {MODERN}
modern-bert      modern-bert      ibm-granite/granite-embedding-311m-multilingual-r2 gpt2 granite-embed-multi-311m bes {GEMMA}
t5encoder        t5encoder        sentence-transformers/sentence-t5-base   t5    default       -   {T5}
t5               t5               google/flan-t5-small                     t5    default       -   {T5}
neo-bert         neo-bert         chandar-lab/NeoBERT                      bert  jina-v2-en    be  {BERT}
eurobert         eurobert         jinaai/jina-embeddings-v5-text-nano      gpt2  jina-v5-nano  be  {LLAMA3}
gemma-embedding  gemma-embedding  google/embeddinggemma-300m               llama default       be  {GEMMA}
llama-embed      llama-embed      nvidia/llama-embed-nemotron-8b           gpt2  llama-bpe     b   {LLAMA3}
llama            llama            meta-llama/Llama-3.2-1B-Instruct         gpt2  llama-bpe     b   {LLAMA3}
llama            llama            mistralai/Mistral-7B-Instruct-v0.3       llama default       bE  {LLAMA} -=[INST] -=[/INST]
deci             deci             nvidia/Llama-3_1-Nemotron-51B-Instruct   gpt2  llama-bpe     b   {LLAMA3}
arcee            arcee            arcee-ai/AFM-4.5B                        gpt2  llama-bpe     b   {LLAMA3}
qwen             qwen             Qwen/Qwen-7B                             gpt2  qwen2         B   {NEOX} -=<|im_start|> -=<|im_end|>
qwen2            qwen2            Qwen/Qwen2.5-7B-Instruct                 gpt2  qwen2         B   {QWEN}
qwen2moe         qwen2moe         Qwen/Qwen1.5-MoE-A2.7B                   gpt2  qwen2         B   {QWEN}
qwen2vl          qwen2vl          Qwen/Qwen2.5-VL-3B-Instruct              gpt2  qwen2         B   {QWEN}
qwen3            qwen3            Qwen/Qwen3-8B                            gpt2  qwen2         B   {QWEN}
qwen3moe         qwen3moe         Qwen/Qwen3-30B-A3B                       gpt2  qwen2         B   {QWEN}
qwen3vl          qwen3vl          Qwen/Qwen3-VL-4B-Instruct                gpt2  qwen2         B   {QWEN}
qwen3vlmoe       qwen3vlmoe       Qwen/Qwen3-VL-30B-A3B-Instruct           gpt2  qwen2         B   {QWEN}
grovemoe         grovemoe         inclusionAI/GroveMoE-Inst                gpt2  qwen2         B   {QWEN}
dots1            dots1            rednote-hilab/dots.llm1.inst             gpt2  qwen2         B   {QWEN} -=<|userprompt|> -=<|endofuserprompt|> -=<|response|> -=<|endofresponse|>
smallthinker     smallthinker     PowerInfer/SmallThinker-4BA0.6B-Instruct gpt2  qwen2         B   {QWEN}
gemma            gemma            google/gemma-2b-it                       llama default       bE  {GEMMA}
gemma3n          gemma3n          google/gemma-3n-E2B-it                   llama default       b   {GEMMA}
deepseek         deepseek         deepseek-ai/deepseek-moe-16b-chat        gpt2  deepseek-llm  b   {DEEPSEEK}
deepseek2-ocr    deepseek2-ocr    deepseek-ai/DeepSeek-OCR                 gpt2  deepseek-v3   b   {DEEPSEEK}
deepseek32       deepseek32       deepseek-ai/DeepSeek-V3.2                gpt2  deepseek-v3   b   {DEEPSEEK}
deepseek4        deepseek4        deepseek-ai/DeepSeek-V4-Flash            gpt2  deepseek-v3   b   {DEEPSEEK}
dots3note        dots3note        dots-studio/dots3-note-prev              gpt2  qwen2         B   {QWEN} eot=<|endofassistant|> -=<|user|> -=<|endofuser|> -=<|assistant|>
glm-dsa          glm-dsa          zai-org/GLM-5.2                          gpt2  glm4          -   eos=<|endoftext|> padding=<|endoftext|> unknown=<|endoftext|> eot=<|user|> eom=<|observation|> bos=[gMASK] -=<sop> -=<|assistant|>
glm5next         glm5next         zai-org/GLM-5.3-Flash                    gpt2  glm4          -   eos=<|endoftext|> padding=<|endoftext|> unknown=<|endoftext|> eot=<|user|> eom=<|observation|> bos=[gMASK] -=<sop> -=<|assistant|>
dream            dream            Dream-org/Dream-v0-Instruct-7B           gpt2  qwen2         B   bos=<|beginoftext|> eos=<|endoftext|> padding=<|endoftext|> mask=<|mask|> -=<|im_start|> -=<|im_end|>
llada            llada            GSAI-ML/LLaDA-8B-Instruct                gpt2  bailingmoe    b   bos=<|startoftext|> eos=<|endoftext|> padding=<|endoftext|> mask=<|mdm_mask|> -=<|start_header_id|> -=<|end_header_id|> -=<|eot_id|>
llada-moe        llada-moe        inclusionAI/LLaDA-MoE-7B-A1B-Instruct    gpt2  llada-moe     B   {LING} mask=<|mask|> -=</role> -=<|role_end|>
rnd1             rnd1             radicalnumerics/RND1-Base-0910           gpt2  qwen2         B   {QWEN} mask=<|mask|>
granitemoe       granitemoe       ibm-granite/granite-3.0-3b-a800m-instruct gpt2 refact        B   {GRANITE}
bailingmoe       bailingmoe       inclusionAI/Ling-lite                    gpt2  bailingmoe    B   {LING}
bailingmoe2      bailingmoe2      inclusionAI/Ling-mini-2.0                gpt2  bailingmoe2   B   {LING} -=</role> -=<|role_end|>
bloom            bloom            bigscience/bloom-560m                    gpt2  bloom         -   {ROBERTA}
codeshell        codeshell        WisdomShell/CodeShell-7B                 gpt2  codeshell     B   {NEOX}
starcoder        starcoder        bigcode/gpt_bigcode-santacoder           gpt2  starcoder     B   {NEOX}
starcoder2       starcoder2       bigcode/starcoder2-3b                    gpt2  starcoder     B   {NEOX}
refact           refact           smallcloudai/Refact-1_6-base             gpt2  refact        B   {NEOX}
gpt2             gpt2             openai-community/gpt2                    gpt2  gpt-2         B   {NEOX}
mpt              mpt              mosaicml/mpt-7b                          gpt2  mpt           B   {NEOX}
olmo             olmo             allenai/OLMo-1.7-7B-hf                   gpt2  olmo          B   eos=<|endoftext|> padding=<|padding|>
olmoe            olmoe            allenai/OLMoE-1B-7B-0924                 gpt2  olmo          B   eos=<|endoftext|> padding=<|padding|>
dbrx             dbrx             databricks/dbrx-instruct                 gpt2  dbrx          B   {QWEN}
falcon           falcon           tiiuae/falcon-7b                         gpt2  falcon        B   {NEOX}
phi2             phi2             microsoft/phi-2                          gpt2  phi-2         B   {NEOX}
stablelm         stablelm         stabilityai/stablelm-2-zephyr-1_6b       gpt2  stablelm2     B   {NEOX}
chameleon        chameleon        facebook/chameleon-7b                    gpt2  chameleon     b   bos=<s> padding=<pad> eos=</s> unknown=<unk> -=IMGIMGAAZ -=IMGIMGABZ
command-r        command-r        CohereForAI/c4ai-command-r-v01           gpt2  command-r     bE  bos=<BOS_TOKEN> eos=<|END_OF_TURN_TOKEN|> padding=<PAD>
cohere2          cohere2          CohereLabs/c4ai-command-r7b-12-2024      gpt2  command-r     bE  bos=<BOS_TOKEN> eos=<|END_OF_TURN_TOKEN|> padding=<PAD>
exaone           exaone           LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct     gpt2  exaone        B   bos=[BOS] eos=[|endofturn|] padding=[PAD] unknown=[UNK] -=[|system|] -=[|user|] -=[|assistant|]
exaone4          exaone4          LGAI-EXAONE/EXAONE-4.0-32B               gpt2  exaone4       B   bos=[BOS] eos=[|endofturn|] padding=[PAD] unknown=[UNK] -=[|system|] -=[|user|] -=[|assistant|]
minimax-m2       minimax-m2       MiniMaxAI/MiniMax-M2                     gpt2  minimax-m2    B   bos=]~!b[ eos=[e~[ unknown=]!d~[
internlm2        internlm2        internlm/internlm2-chat-7b               llama default       b   {LLAMA} -=<|im_start|> -=<|im_end|>
baichuan         baichuan         baichuan-inc/Baichuan2-7B-Chat           llama default       BE  {LLAMA} -=<reserved_106> -=<reserved_107>
orion            orion            OrionStarAI/Orion-14B-Chat               llama default       BE  {LLAMA}
openelm          openelm          apple/OpenELM-270M                       llama default       b   {LLAMA}
minicpm          minicpm          openbmb/MiniCPM-2B-sft-bf16              llama default       bE  {LLAMA}
minicpm3         minicpm3         openbmb/MiniCPM3-4B                      llama default       bE  {LLAMA} -=<|im_start|> -=<|im_end|>
ernie4_5         ernie4_5         baidu/ERNIE-4.5-0.3B-PT                  llama default       -   {LLAMA} -=<|begin_of_sentence|> -=<|end_of_sentence|>
ernie4_5-moe     ernie4_5-moe     baidu/ERNIE-4.5-21B-A3B-PT               llama default       -   {LLAMA} -=<|begin_of_sentence|> -=<|end_of_sentence|>
plamo            plamo            pfnet/plamo-13b                          llama default       b   {LLAMA}
phimoe           phimoe           microsoft/Phi-3.5-MoE-instruct           llama default       BE  {LLAMA} -=<|end|> -=<|user|> -=<|assistant|>
chatglm          chatglm          zai-org/glm-4-9b-chat-hf                 gpt2  chatglm-bpe   B   eos=<|endoftext|> padding=<|endoftext|> eot=<|user|> bos=[gMASK] -=<sop> -=<|assistant|>
exaone-moe       exaone-moe       LGAI-EXAONE/K-EXAONE-236B-A23B           gpt2  exaone-moe    B   bos=[BOS] eos=<|endofturn|> padding=[PAD] unknown=[UNK] -=<|system|> -=<|user|> -=<|assistant|>
jais2            jais2            inceptionai/Jais-2-8B-Chat               gpt2  jais-2        B   {NEOX}
jais             jais             inceptionai/jais-family-590m             gpt2  jais          B   {NEOX}
mellum           mellum           JetBrains/Mellum2-12B-A2.5B-Base         gpt2  mellum2       B   {NEOX}
cohere2moe       cohere2moe       CohereLabs/North-Mini-Code-1.0           gpt2  cohere2moe    bE  bos=<BOS_TOKEN> eos=<|END_OF_TURN_TOKEN|> padding=<PAD>
hunyuan-moe      hunyuan-moe      tencent/Hunyuan-A13B-Instruct            gpt2  hunyuan       B   bos=<|startoftext|> eos=<|eos|> padding=<|pad|> -=<|extra_0|> -=<|extra_4|>
hunyuan-dense    hunyuan-dense    tencent/Hunyuan-4B-Instruct              gpt2  hunyuan-dense B   bos=<｜hy_begin▁of▁sentence｜> eos=<｜hy_place▁holder▁no▁2｜> -=<｜hy_User｜> -=<｜hy_Assistant｜> -=<｜hy_place▁holder▁no▁3｜>
apertus          apertus          swiss-ai/Apertus-8B-Instruct-2509        gpt2  tekken        b   bos=<s> eos=<|assistant_end|> unknown=<unk> padding=<pad>
seed_oss         seed_oss         ByteDance-Seed/Seed-OSS-36B-Instruct     gpt2  seed-coder    B   bos=<seed:bos> eos=<seed:eos> padding=<seed:pad>
arctic           arctic           Snowflake/snowflake-arctic-instruct      llama default       bE  {LLAMA} -=<|im_start|> -=<|im_end|>
jamba            jamba            ai21labs/Jamba-v0.1                      llama default       bE  bos=<|startoftext|> eos=<|endoftext|> unknown=<|unk|> padding=<|pad|>
nemotron         nemotron         nvidia/Minitron-4B-Base                  llama default       BE  {LLAMA}
paddleocr        paddleocr        PaddlePaddle/PaddleOCR-VL                llama default       -   {LLAMA} -=<|begin_of_sentence|> -=<|end_of_sentence|>
pangu-embedded   pangu-embedded   FreedomIntelligence/openPangu-Embedded-7B-V1.1 llama default bE  {LLAMA} -=[unused9] -=[unused10]
bailingmoe3      bailingmoe3      inclusionAI/Ling-3.0-flash               gpt2  bailingmoe2   B   {LING} -=</role> eot=<|role_end|>
qwen4exp         qwen4exp         Qwen/Qwen3.8-Flash-Next                  gpt2  qwen35        B   {QWEN}
kimi-k3          kimi-k3          moonshotai/Kimi-K3                       gpt2  kimi-k2       -   bos=[BOS] eos=<|end_of_msg|> -=<|open|> -=<|close|> -=<|sep|> unknown=[UNK] padding=[PAD]
minimax-m3       leading-minimax-m3 MiniMaxAI/MiniMax-M3                     gpt2  minimax-m2    B   bos=]~!b[ eos=[e~[ unknown=]!d~[
minimax-01       minimax-01       MiniMaxAI/MiniMax-M1-40k                 gpt2  minimax-m2    B   bos=<beginning_of_sentence> eos=<end_of_sentence> unknown=<unk>
plamo2           plamo2           pfnet/plamo-2-1b                         plamo2 default      -   {PLAMO}
plamo3           plamo3           pfnet/plamo-3-nict-2b-base               plamo2 default      -   {PLAMO}
plm              plm              PLM-Team/PLM-1.8B-Instruct               gpt2  qwen2         B   {QWEN}
maincoder        maincoder        Maincode/Maincoder-1B                    gpt2  qwen2         B   {QWEN}
mimo2            mimo2            XiaomiMiMo/MiMo-V2-Flash                 gpt2  qwen2         B   {QWEN}
nanbeige         nanbeige         Nanbeige/Nanbeige4.2-3B                  llama default       bE  unknown=<unk> bos=<|im_start|> eos=<|im_end|> padding=<unk> -=<s> -=</s>
talkie           talkie           lewtun/talkie-1930-13b-it-hf             gpt2  talkie        B   bos=<|endoftext|> eos=<|end|> -=<|user|> -=<|assistant|> -=<|system|>
graniteswitch    graniteswitch    ibm-granite/granite-switch-4.1-3b-preview gpt2 refact        B   {GRANITE}
granite_swa      granite_swa      GraniteSWAForCausalLM                    gpt2  refact        B   {GRANITE}
granite_swa      experts-granite_swa GraniteMoeSWAForCausalLM              gpt2  refact        B   {GRANITE}
hunyuan_vl       hunyuan_vl       tencent/HunyuanOCR                       gpt2  hunyuan-dense B   bos=<｜hy_begin▁of▁sentence｜> eos=<｜hy_place▁holder▁no▁2｜> padding=<｜hy_▁pad▁｜> -=<｜hy_User｜> -=<｜hy_Assistant｜> -=<｜hy_place▁holder▁no▁3｜>
hrm_text         hrm_text         danish-foundation-models/DFM-Mimir       gpt2  gemma4        b   {GEMMA4}
hy_v3            hy_v3            tencent/Hy3                              gpt2  hy_v4         B   bos=<｜hy_begin▁of▁sentence｜> eos=<｜hy_eos｜> padding=<｜hy_▁pad▁｜>
hy_v4            hy_v4            tencent/Hy4-preview                      gpt2  hy_v4         B   bos=<｜hy_begin▁of▁sentence｜> eos=<｜hy_eos｜> padding=<｜hy_▁pad▁｜>
spark2_5         spark2_5         XHToken/Spark-X2.5-1.7B                  gpt2  spark2_5      B   bos=<｜start▁of▁sentence｜> eos=<｜end▁of▁sentence｜> -=<|System|> -=<|User|> -=<|Bot|> -=<|Tool|>
cogvlm           cogvlm           THUDM/cogvlm2-llama3-chat-19B            gpt2  llama-bpe     b   {LLAMA3}
cogvlm           cogvlm           THUDM/cogvlm-chat-hf                     llama default       bE  {LLAMA}
gptneox          gptneox          EleutherAI/pythia-70m                    gpt2  olmo          B   {NEOX}
bitnet           bitnet           1bitLLM/bitnet_b1_58-3B                  llama default       bE  {LLAMA} padding=<pad>
xverse           xverse           xverse/XVERSE-7B                         llama default       -   padding=<pad> unknown=<unk> bos=<|startoftext|> eos=<|endoftext|>
mistral4         mistral4         mistralai/Mistral-Small-4-119B-2603      gpt2  tekken        bE  unknown=<unk> bos=<s> eos=</s> padding=<pad> -=[INST] -=[/INST] -=[SYSTEM_PROMPT] -=[/SYSTEM_PROMPT]
grok             grok             keyfan/grok-1-hf                         llama default       bE  padding=[PAD] bos=[BOS] eos=[EOS] unknown=<unk>
grok             grok             xai-org/grok-2                           gpt2  grok-2        B   padding=<|pad|> eos=<|eos|> eot=<|separator|>
afmoe            afmoe            arcee-ai/Trinity-Large-Thinking          gpt2  afmoe         B   bos=<|begin_of_text|> eos=<|im_end|> padding=<|pad|> -=<|im_start|>
step35           step35           stepfun-ai/Step-3.7-Flash                gpt2  deepseek-v3   b   bos=<｜begin▁of▁sentence｜> eos=<|im_end|> padding=<｜▁pad▁｜> -=<|im_start|>
maple            maple            deepgrove/maple-preview                  gpt2  gpt-4o        B   bos=<|endoftext|> eos=<|im_end|> padding=<|endoftext|> -=<|im_start|>
laguna           laguna           poolside/Laguna-XS.2                     gpt2  laguna        B   bos=〈|EOS|〉 eos=〈|EOS|〉 padding=〈|PAD|〉 unknown=〈|UNK|〉 eot=</assistant> -=<assistant> -=<user> -=<system>
"""  # noqa: E501

# Chat models with their template: a name in tests/text/template_matrix.py or, if no licence allows a copy, in TURNS.
TEMPLATES = {
    "danish-foundation-models/DFM-Mimir": "google-gemma-4-31B-it",
    "CohereForAI/c4ai-command-r-v01": "CohereForAI-c4ai-command-r-plus",
    "OrionStarAI/Orion-14B-Chat": "OrionStarAI-Orion-14B-Chat",
    "Qwen/Qwen3-30B-A3B": "Qwen-Qwen3-0.6B",
    "deepseek-ai/DeepSeek-V3.2": "deepseek-ai-DeepSeek-V3.2",
    "google/gemma-2b-it": "google-gemma-7b-it",
    "ibm-granite/granite-3.0-3b-a800m-instruct": "ibm-granite-granite-3.0-8b-instruct",
    "inclusionAI/Ling-lite": "inclusionAI-Ling-lite",
    "microsoft/Phi-3.5-MoE-instruct": "microsoft-Phi-3.5-mini-instruct",
    "openbmb/MiniCPM-2B-sft-bf16": "MiniCPM-3B-OpenHermes-2.5-v2-GGUF",
    "zai-org/glm-4-9b-chat-hf": "ChatGLM4",
    "inclusionAI/Ling-3.0-flash": "inclusionai-ling-3.0-flash",
    "MiniMaxAI/MiniMax-M1-40k": "MiniMax-M1",
    "moonshotai/Kimi-K3": "Kimi-K3",
    "ibm-granite/granite-switch-4.1-3b-preview": "ibm-granite-granite-4.1",
    "MiniMaxAI/MiniMax-M2": "MiniMax-M2",
    "MiniMaxAI/MiniMax-M3": "MiniMax-M3",
    "XHToken/Spark-X2.5-1.7B": "Spark2.5",
    "tencent/Hy3": "tencent-Hy3",
    "deepseek-ai/DeepSeek-V4-Flash": "deepseek-ai-DeepSeek-V4",
    "stepfun-ai/Step-3.7-Flash": "StepFun3.5-Flash",
    "poolside/Laguna-XS.2": "poolside-Laguna-XS.2",
    "Qwen/Qwen2.5-7B-Instruct": "Qwen-Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-8B": "Qwen-Qwen3-0.6B",
    "meta-llama/Llama-3.2-1B-Instruct": "meta-llama-Llama-3.2-3B-Instruct",
    "ByteDance-Seed/Seed-OSS-36B-Instruct": "ByteDance-Seed-OSS",
    "swiss-ai/Apertus-8B-Instruct-2509": "Apertus-8B-Instruct",
    "CohereLabs/North-Mini-Code-1.0": "Cohere2MoE",
    "CohereLabs/c4ai-command-r7b-12-2024": "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    # Turns as in tests/models/turns.py
    "Qwen/Qwen1.5-MoE-A2.7B": "chatml",
    "Qwen/Qwen2.5-VL-3B-Instruct": "chatml",
    "Qwen/Qwen3-VL-4B-Instruct": "chatml",
    "Qwen/Qwen3-VL-30B-A3B-Instruct": "chatml",
    "inclusionAI/GroveMoE-Inst": "chatml",
    "PowerInfer/SmallThinker-4BA0.6B-Instruct": "chatml",
    "Dream-org/Dream-v0-Instruct-7B": "chatml",
    "databricks/dbrx-instruct": "chatml",
    "internlm/internlm2-chat-7b": "chatml",
    "openbmb/MiniCPM3-4B": "chatml",
    "Snowflake/snowflake-arctic-instruct": "chatml",
    "PLM-Team/PLM-1.8B-Instruct": "chatml",
    "Maincode/Maincoder-1B": "chatml",
    "XiaomiMiMo/MiMo-V2-Flash": "chatml",
    "Nanbeige/Nanbeige4.2-3B": "chatml",
    "arcee-ai/Trinity-Large-Thinking": "chatml",
    "deepgrove/maple-preview": "chatml",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral",
    "mistralai/Mistral-Small-4-119B-2603": "mistral-small",
    "google/gemma-3n-E2B-it": "gemma",
    "deepseek-ai/deepseek-moe-16b-chat": "deepseek",
    "rednote-hilab/dots.llm1.inst": "dots1",
    "dots-studio/dots3-note-prev": "dots",
    "inclusionAI/Ling-mini-2.0": "ling",
    "inclusionAI/LLaDA-MoE-7B-A1B-Instruct": "ling",
    "stabilityai/stablelm-2-zephyr-1_6b": "zephyr",
    "LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct": "exaone",
    "LGAI-EXAONE/EXAONE-4.0-32B": "exaone",
    "LGAI-EXAONE/K-EXAONE-236B-A23B": "exaone-moe",
    "baichuan-inc/Baichuan2-7B-Chat": "baichuan",
    "baidu/ERNIE-4.5-0.3B-PT": "ernie",
    "baidu/ERNIE-4.5-21B-A3B-PT": "ernie",
    "tencent/Hunyuan-A13B-Instruct": "hunyuan-moe",
    "tencent/Hunyuan-4B-Instruct": "hunyuan",
    "tencent/HunyuanOCR": "hunyuan-vl",
    "FreedomIntelligence/openPangu-Embedded-7B-V1.1": "pangu",
    "xai-org/grok-2": "grok-2",
    "GraniteSWAForCausalLM": "granite",
    "GraniteMoeSWAForCausalLM": "granite",
    "GSAI-ML/LLaDA-8B-Instruct": "llada",
    "zai-org/GLM-5.2": "glm-5",
    "zai-org/GLM-5.3-Flash": "glm-5",
    "PaddlePaddle/PaddleOCR-VL": "ernie",
    # The template of an earlier model of the family
    "nvidia/Llama-3_1-Nemotron-51B-Instruct": "meta-llama-Llama-3.1-8B-Instruct",
    "Qwen/Qwen3.8-Flash-Next": "Qwen3.5-4B",
    "tencent/Hy4-preview": "tencent-Hy3",
}
UNKNOWN = "<unk>", "[UNK]", "<|plamo:unk|>"
WITHOUT_SCORES = ("xverse",)
WITHOUT_MERGES = "granite-embed-multi-311m", "gemma4"  # small vocabularies of bytes
MERGES = "t h", "Ġ t", "h e", "th e", "Ġt he", "e r", "i n", "Ġ a"
# The same in an order that reaches every token: words of GLM that are tokens skip the merges, unlike in llama.cpp.
GLM_MERGES = MERGES[1], MERGES[0], *MERGES[2:]


@dataclass(frozen=True)
class Published:
    """One line of the table."""

    arch: str
    golden: str
    model: str
    kind: str
    pre: str
    adds: str
    special: tuple[tuple[str, str], ...]  # role, or -, and text

    def role(self, name: str) -> str | None:
        return next((text for role, text in self.special if role == name), None)


def published() -> list[Published]:
    lines = (line.split() for line in FORMS.strip().splitlines())
    return [
        Published(arch, golden, model, kind, pre, adds, tuple((role, text) for role, _, text in pairs(rest)))
        for arch, golden, model, kind, pre, adds, *rest in lines
    ]


def pairs(words: list[str]) -> list[tuple[str, str, str]]:
    return [word.partition("=") for word in words]


def tokens_of(form: Published, count: int) -> list[tuple[str, int, float]]:
    """Returns text, kind and score of each token: special tokens at the converter's ids, and unused tokens."""
    special = [(text, CONTROL, 0.0) for text in dict.fromkeys(text for _, text in form.special)]
    special = [
        (text, int(Kind.UNKNOWN) if text in ("<unk>", "[UNK]", "<|plamo:unk|>") else kind, s)
        for text, kind, s in special
    ]
    words = "▁the ▁a the er in th he hello ▁hello ▁world world".split()  # noqa: SIM905
    bytes_ = [(f"<0x{byte:02X}>", int(Kind.BYTE), 0.0) for byte in range(256)]
    letters = [*"▁abcdehilnorstuw,.!"]
    if form.pre in WITHOUT_MERGES:
        tokens = special + bytes_
    elif form.kind == "gpt2":
        merged = [line.replace(" ", "") for line in MERGES]
        tokens = [(text, NORMAL, 0.0) for text in [*BYTE_LETTERS, *merged]] + special
    elif form.kind == "plamo2":
        tokens = special + bytes_ + [(text, NORMAL, -float(i + 1)) for i, text in enumerate(letters)]
    elif form.kind == "llama":
        tokens = special + bytes_
        tokens += [(text, NORMAL, -float(i)) for i, text in enumerate(words)]
    else:
        tokens = special + [(text, NORMAL, -float(i + 1)) for i, text in enumerate(dict.fromkeys(words + letters))]
    tokens = tokens[:count]
    return tokens + [(f"[PAD{i}]", int(Kind.UNUSED), 0.0) for i in range(count - len(tokens))]


def file_of(form: Published) -> Parts:
    """Returns the golden model with the tokenizer of this form."""
    name = form.golden if (OWN / f"{form.golden}.gguf").is_file() else f"tiny-{form.golden}"
    whole = take_apart((OWN / f"{name}.gguf").read_bytes())
    count = next(one.dims[1] for one in whole.tensors if one.name == b"token_embd.weight")
    types = [row for row in whole.rows if row.name == b"tokenizer.ggml.token_type_count"]
    whole.rows = [row for row in whole.rows if not row.name.startswith(b"tokenizer.")] + types
    tokens = tokens_of(form, count)
    ids = {text: i for i, (text, _, _) in enumerate(tokens)}
    whole.set("general.type", STRING, b"model")
    whole.set("tokenizer.ggml.model", STRING, form.kind.encode())
    whole.set("tokenizer.ggml.pre", STRING, form.pre.encode())
    whole.rows.append(Row(b"tokenizer.ggml.tokens", ARRAY, [text.encode() for text, _, _ in tokens], STRING))
    whole.rows.append(Row(b"tokenizer.ggml.token_type", ARRAY, [kind for _, kind, _ in tokens], I32))
    if form.kind in ("llama", "t5", "plamo2") and form.arch not in WITHOUT_SCORES:
        whole.rows.append(Row(b"tokenizer.ggml.scores", ARRAY, [score for _, _, score in tokens], F32))
    if form.kind == "gpt2":
        merges = () if form.pre in WITHOUT_MERGES else GLM_MERGES if form.pre == "glm4" else MERGES
        whole.rows.append(Row(b"tokenizer.ggml.merges", ARRAY, [line.encode() for line in merges], STRING))
    for role, text in form.special:
        if role != "-":
            whole.set(f"tokenizer.ggml.{role}_token_id", U32, ids[text])
    for letter, name in {"b": "bos", "e": "eos", "s": "sep"}.items():
        if letter in form.adds.lower():
            whole.set(f"tokenizer.ggml.add_{name}_token", BOOL, letter in form.adds)
    if form.kind == "t5":
        whole.set("tokenizer.ggml.add_space_prefix", BOOL, True)
        whole.set("tokenizer.ggml.remove_extra_whitespaces", BOOL, True)
    if form.kind == "bert":
        whole.set("tokenizer.ggml.normalizer.lowercase", BOOL, True)
    if "<start_of_turn>" in ids and form.kind == "llama":
        whole.set("tokenizer.ggml.add_space_prefix", BOOL, False)
    if form.model in TEMPLATES:
        name = TEMPLATES[form.model]
        source = TURNS[name].template() if name in TURNS else template_matrix.sources()[name]
        whole.set("tokenizer.chat_template", STRING, source.encode())
        whole.set(f"{form.arch}.context_length", U32, 4096)  # one template writes two pages of instructions
    with_keys(whole, header_of(whole, form.arch))
    with_tensors(whole, header_of(whole, form.arch))
    return whole
