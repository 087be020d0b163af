//! Fuzzes a plugin's input to the Wasm host: serialized pairs, and host calls with arbitrary pointers and lengths.
#![no_main]

use std::sync::{Arc, LazyLock};

use ambit_wasm::{
    Direction, Engine, HeaderSection, Metrics, Module, PropertySource, PropertyValue, Settings,
    SharedState, Vm, read_pairs, write_pairs,
};
use libfuzzer_sys::fuzz_target;

struct NoFacts;

impl PropertySource for NoFacts {
    fn property(&self, _: &[&str]) -> Option<PropertyValue> {
        None
    }
}

/// Module of `wasm_host.wat`. The first bytes of its configuration select the host function and its arguments.
static MODULE: LazyLock<(Engine, Module)> = LazyLock::new(|| {
    let engine = Engine::new().expect("an engine");
    let module = wat::parse_str(include_str!("wasm_host.wat")).expect("WAT");
    let module = engine.compile(&module).expect("a module");
    (engine, module)
});

fuzz_target!(|data: &[u8]| {
    if let Some(pairs) = read_pairs(data) {
        assert_eq!(read_pairs(&write_pairs(pairs.iter().copied())), Some(pairs));
    }
    let settings = Settings {
        name: "fuzz".to_owned(),
        root_id: String::new(),
        vm_id: String::new(),
        configuration: data.to_vec().into(),
        vm_configuration: Default::default(),
        environment: Default::default(),
        limits: Default::default(),
    };
    let (_engine, module) = &*MODULE;
    let vm = Vm::start(
        module,
        Arc::new(settings),
        SharedState::default(),
        Metrics::default(),
    );
    let Ok(mut vm) = vm else { return };
    let Ok(id) = vm.create_stream_context(Arc::new(NoFacts)) else {
        return;
    };
    let _outcome = vm.on_headers(Direction::Request, id, HeaderSection::default(), false);
    let _outcome = vm.on_body(Direction::Request, id, data, true);
    let _effects = vm.take_effects();
    let _closed = vm.end_stream(id);
});
