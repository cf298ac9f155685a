"""What is relied on of transformers: how a config is read, and which class a config is run by."""

from __future__ import annotations

from dataclasses import replace

from nnterp.foreign.internals import attributes, class_, function, passed_on, variable, within

TRANSFORMERS = (
    *within(
        "transformers.configuration_utils",
        "engines.arguments",
        passed_on("PretrainedConfig.from_pretrained"),
        passed_on("PretrainedConfig.get_config_dict", "pretrained_model_name_or_path"),
        passed_on("PretrainedConfig._get_config_dict"),
        passed_on("PretrainedConfig.from_dict", "config_dict"),
    ),
    *within(
        "transformers.models.auto.auto_factory",
        "engines.arguments",
        *attributes("_BaseAutoModelClass", "_model_mapping"),
        passed_on("_BaseAutoModelClass.from_pretrained"),
    ),
    *within("transformers.pipelines", "engines.arguments", function("check_task", "task")),
    *within(
        "transformers.models.auto.configuration_auto",
        "engines.vllm.load_isolation",
        variable("CONFIG_MAPPING"),
        *attributes("_LazyConfigMapping", "_mapping", "_extra_content"),
    ),
    *within(
        "transformers.configuration_utils",
        "engines.transformers.envoys.attention",
        *attributes("PreTrainedConfig", "_attn_implementation"),
    ),
    *within(
        "transformers.configuration_utils",
        "families",
        *attributes("PreTrainedConfig", "_name_or_path"),
        function("PreTrainedConfig.get_text_config", named=("decoder",)),
    ),
    *(
        # The family that runs a checkpoint is suggested from it, in an error.
        replace(row, harmless=True)
        for row in within(
            "transformers.models.auto.modeling_auto",
            "advice.similar_families",
            variable("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
        )
    ),
    *within(
        "transformers.models.recurrent_gemma.modeling_recurrent_gemma",
        "families.recurrent_gemma",
        variable("TEMPORAL_BLOCK_CLASSES"),
    ),
    *within(
        "transformers.models.minimax.modeling_minimax",
        "families.minimax",
        class_("MiniMaxLightningAttention"),
    ),
    *within(
        "transformers.models.nemotron_h.modeling_nemotron_h",
        "families.nemotron_h",
        class_("NemotronHAttention"),
        class_("NemotronHMamba2Mixer"),
        class_("NemotronHMLP"),
        class_("NemotronHMoE"),
    ),
)
