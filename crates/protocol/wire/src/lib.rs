//! Generated protobuf and gRPC code, and the conversions to and from the model.
//!
//! Outside of this crate, only the code that runs gRPC streams uses protobuf messages. `cargo xtask gen` generates
//! `src/generated` from `proto/`; a build needs no protobuf compiler.
#![forbid(unsafe_code)]

#[expect(
    missing_docs,
    unnameable_types,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    clippy::nursery,
    reason = "generated code"
)]
mod generated {
    pub mod istio {
        pub mod workload {
            include!("generated/istio.workload.rs");
            pub mod zds {
                include!("generated/istio.workload.zds.rs");
            }
        }
        pub mod security {
            include!("generated/istio.security.rs");
        }
        pub mod v1 {
            pub mod auth {
                include!("generated/istio.v1.auth.rs");
            }
        }
    }
    pub mod envoy {
        pub mod config {
            pub mod core {
                pub mod v3 {
                    include!("generated/envoy.config.core.v3.rs");
                }
            }
        }
        pub mod service {
            pub mod auth {
                pub mod v3 {
                    include!("generated/envoy.service.auth.v3.rs");
                }
            }
            pub mod ratelimit {
                pub mod v3 {
                    include!("generated/envoy.service.ratelimit.v3.rs");
                }
            }
            pub mod discovery {
                pub mod v3 {
                    include!("generated/envoy.service.discovery.v3.rs");
                }
            }
        }
    }
    pub mod spiffe {
        include!("generated/_.rs");
    }
    pub mod spire {
        pub mod api {
            pub mod types {
                include!("generated/spire.api.types.rs");
            }
            pub mod agent {
                pub mod delegatedidentity {
                    pub mod v1 {
                        include!("generated/spire.api.agent.delegatedidentity.v1.rs");
                    }
                }
            }
        }
    }
    pub mod ambit {
        pub mod v1 {
            include!("generated/ambit.v1.rs");
        }
    }
}

pub mod decode;
pub mod encode;
pub mod enrolled;
mod envoy;
pub mod ext_authz;
pub mod rate_limit_service;
pub mod records;
mod secrets;
mod unknown;
pub mod zds_codec;

pub use generated::{
    ambit::v1 as ambit,
    envoy::service::discovery::v3 as discovery,
    istio::{security, v1::auth as citadel, workload, workload::zds},
    spiffe,
    spire::api::{agent::delegatedidentity::v1 as delegated_identity, types as spire_types},
};
