//! Host functions for metrics, and for the data and queues that plugins share.

use wasmtime::{Caller, Linker};

use super::{
    Host,
    memory::{GuestMemory, HostError, to_status_code},
};
use crate::{
    abi::{ENV_MODULE, Status},
    effect::Effect,
    metrics::{MetricKind, Series},
};

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    link_metrics(linker)?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_get_shared_data",
        |caller: Caller<'_, Host>, key: u32, length: u32, at: u32, length_at: u32, cas_at: u32| {
            to_status_code(get_data(
                GuestMemory::new(caller),
                (key, length),
                (at, length_at),
                cas_at,
            ))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_set_shared_data",
        |caller: Caller<'_, Host>, key: u32, key_length: u32, at: u32, length: u32, cas: u32| {
            to_status_code(set_data(
                GuestMemory::new(caller),
                (key, key_length),
                (at, length),
                cas,
            ))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_register_shared_queue",
        |caller: Caller<'_, Host>, name: u32, length: u32, at: u32| {
            to_status_code(register_queue(GuestMemory::new(caller), name, length, at))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_resolve_shared_queue",
        |caller: Caller<'_, Host>, vm: u32, vm_length: u32, name: u32, length: u32, at: u32| {
            to_status_code(resolve_queue(
                GuestMemory::new(caller),
                (vm, vm_length),
                (name, length),
                at,
            ))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_enqueue_shared_queue",
        |caller: Caller<'_, Host>, queue: u32, at: u32, length: u32| {
            to_status_code(enqueue(GuestMemory::new(caller), queue, at, length))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_dequeue_shared_queue",
        |caller: Caller<'_, Host>, queue: u32, at: u32, length_at: u32| {
            to_status_code(dequeue(GuestMemory::new(caller), queue, at, length_at))
        },
    )?;
    Ok(())
}

fn link_metrics(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV_MODULE,
        "proxy_define_metric",
        |caller: Caller<'_, Host>, kind: u32, name: u32, length: u32, at: u32| {
            to_status_code(define_metric(
                GuestMemory::new(caller),
                kind,
                (name, length),
                at,
            ))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_get_metric",
        |caller: Caller<'_, Host>, id: u32, at: u32| {
            let mut guest = GuestMemory::new(caller);
            let read = find_series(guest.host(), id).and_then(|series| match series.kind {
                MetricKind::Histogram => Err(Status::BadArgument),
                _ => Ok(series.get()),
            });
            to_status_code(
                read.map_err(Into::into)
                    .and_then(|value| guest.write(at, &value.to_le_bytes())),
            )
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_record_metric",
        |mut caller: Caller<'_, Host>, id: u32, value: u64| {
            let series = find_series(caller.data_mut(), id);
            to_status_number(series.map(|series| series.record(value)))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_increment_metric",
        |mut caller: Caller<'_, Host>, id: u32, by: i64| {
            let added =
                find_series(caller.data_mut(), id).and_then(|series| match (series.kind, by) {
                    (MetricKind::Histogram, _) => Err(Status::BadArgument),
                    (_, 0..) => {
                        series.add(by.unsigned_abs());
                        Ok(())
                    }
                    (MetricKind::Gauge, _) => {
                        series.subtract(by.unsigned_abs());
                        Ok(())
                    }
                    (MetricKind::Counter, _) => Err(Status::BadArgument),
                });
            to_status_number(added)
        },
    )?;
    Ok(())
}

fn to_status_number(result: Result<(), Status>) -> u32 {
    result.err().unwrap_or(Status::Ok) as u32
}

fn find_series(host: &Host, id: u32) -> Result<std::sync::Arc<Series>, Status> {
    host.metrics.series(id).ok_or(Status::NotFound)
}

fn define_metric(
    mut guest: GuestMemory<'_>,
    kind: u32,
    name: (u32, u32),
    at: u32,
) -> Result<(), HostError> {
    let kind = match kind {
        0 => MetricKind::Counter,
        1 => MetricKind::Gauge,
        2 => MetricKind::Histogram,
        _ => return Err(Status::BadArgument.into()),
    };
    let name = guest.read_text(name.0, name.1)?;
    let id = guest
        .host()
        .metrics
        .define(kind, &name)
        .ok_or(Status::InternalFailure)?;
    guest.write_u32(at, id)
}

fn get_data(
    mut guest: GuestMemory<'_>,
    (key, length): (u32, u32),
    (at, length_at): (u32, u32),
    cas_at: u32,
) -> Result<(), HostError> {
    let (key, host) = guest.read_with_host(key, length)?;
    let found = host.shared.get(&host.settings.vm_id, key);
    let (value, cas) = found.ok_or(Status::NotFound)?;
    guest.write_allocated(&value, at, length_at)?;
    guest.write_u32(cas_at, cas)
}

fn set_data(
    mut guest: GuestMemory<'_>,
    key: (u32, u32),
    value: (u32, u32),
    cas: u32,
) -> Result<(), HostError> {
    let (key, value, host) = guest.read_two_with_host(key, value)?;
    match host.shared.set(&host.settings.vm_id, key, value, cas) {
        Status::Ok => Ok(()),
        status => Err(status.into()),
    }
}

fn register_queue(
    mut guest: GuestMemory<'_>,
    name: u32,
    length: u32,
    at: u32,
) -> Result<(), HostError> {
    let (name, host) = guest.read_with_host(name, length)?;
    let queue = host.shared.register_queue(&host.settings.vm_id, name);
    let queue = queue.ok_or(Status::InternalFailure)?;
    Effect::SubscribeQueue(queue).push_unless_duplicate(&mut host.effects);
    guest.write_u32(at, queue)
}

fn resolve_queue(
    mut guest: GuestMemory<'_>,
    vm: (u32, u32),
    name: (u32, u32),
    at: u32,
) -> Result<(), HostError> {
    let (vm, name, host) = guest.read_two_with_host(vm, name)?;
    let vm = str::from_utf8(vm).map_err(|_| Status::BadArgument)?;
    let queue = host.shared.queue_id(vm, name).ok_or(Status::NotFound)?;
    guest.write_u32(at, queue)
}

fn enqueue(mut guest: GuestMemory<'_>, queue: u32, at: u32, length: u32) -> Result<(), HostError> {
    let (message, host) = guest.read_with_host(at, length)?;
    match host.shared.enqueue(queue, message) {
        Status::Ok => Effect::MessageEnqueued(queue).push_unless_duplicate(&mut host.effects),
        status => return Err(status.into()),
    }
    Ok(())
}

fn dequeue(
    mut guest: GuestMemory<'_>,
    queue: u32,
    at: u32,
    length_at: u32,
) -> Result<(), HostError> {
    let message = guest.host().shared.dequeue(queue)?;
    guest.write_allocated(&message, at, length_at)
}
