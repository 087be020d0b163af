//! Host functions for metrics, and for the data and queues that plugins share.

use wasmtime::{Caller, Linker};

use super::{
    Host,
    memory::{Guest, HostError, answer},
};
use crate::{
    abi::{ENV, Status},
    effect::Effect,
    metrics::{MetricKind, Series},
};

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    link_metrics(linker)?;
    linker.func_wrap(
        ENV,
        "proxy_get_shared_data",
        |caller: Caller<'_, Host>, key: u32, length: u32, at: u32, length_at: u32, cas_at: u32| {
            answer(get_data(
                Guest::new(caller),
                (key, length),
                (at, length_at),
                cas_at,
            ))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_set_shared_data",
        |caller: Caller<'_, Host>, key: u32, key_length: u32, at: u32, length: u32, cas: u32| {
            answer(set_data(
                Guest::new(caller),
                (key, key_length),
                (at, length),
                cas,
            ))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_register_shared_queue",
        |caller: Caller<'_, Host>, name: u32, length: u32, at: u32| {
            answer(register(Guest::new(caller), name, length, at))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_resolve_shared_queue",
        |caller: Caller<'_, Host>, vm: u32, vm_length: u32, name: u32, length: u32, at: u32| {
            answer(resolve(
                Guest::new(caller),
                (vm, vm_length),
                (name, length),
                at,
            ))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_enqueue_shared_queue",
        |caller: Caller<'_, Host>, queue: u32, at: u32, length: u32| {
            answer(enqueue(Guest::new(caller), queue, at, length))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_dequeue_shared_queue",
        |caller: Caller<'_, Host>, queue: u32, at: u32, length_at: u32| {
            answer(dequeue(Guest::new(caller), queue, at, length_at))
        },
    )?;
    Ok(())
}

fn link_metrics(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_define_metric",
        |caller: Caller<'_, Host>, kind: u32, name: u32, length: u32, at: u32| {
            answer(define(Guest::new(caller), kind, (name, length), at))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_get_metric",
        |caller: Caller<'_, Host>, id: u32, at: u32| {
            let mut guest = Guest::new(caller);
            let read = series(guest.host(), id).and_then(|series| match series.kind {
                MetricKind::Histogram => Err(Status::BadArgument),
                _ => Ok(series.get()),
            });
            answer(
                read.map_err(Into::into)
                    .and_then(|value| guest.put(at, &value.to_le_bytes())),
            )
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_record_metric",
        |mut caller: Caller<'_, Host>, id: u32, value: u64| {
            let series = series(caller.data_mut(), id);
            status(series.map(|series| series.record(value)))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_increment_metric",
        |mut caller: Caller<'_, Host>, id: u32, by: i64| {
            let added = series(caller.data_mut(), id).and_then(|series| match (series.kind, by) {
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
            status(added)
        },
    )?;
    Ok(())
}

fn status(result: Result<(), Status>) -> u32 {
    result.err().unwrap_or(Status::Ok) as u32
}

fn series(host: &Host, id: u32) -> Result<std::sync::Arc<Series>, Status> {
    host.metrics.series(id).ok_or(Status::NotFound)
}

fn define(mut guest: Guest<'_>, kind: u32, name: (u32, u32), at: u32) -> Result<(), HostError> {
    let kind = match kind {
        0 => MetricKind::Counter,
        1 => MetricKind::Gauge,
        2 => MetricKind::Histogram,
        _ => return Err(Status::BadArgument.into()),
    };
    let name = guest.text(name.0, name.1)?;
    let id = guest
        .host()
        .metrics
        .define(kind, &name)
        .ok_or(Status::InternalFailure)?;
    guest.put_number(at, id)
}

fn get_data(
    mut guest: Guest<'_>,
    (key, length): (u32, u32),
    (at, length_at): (u32, u32),
    cas_at: u32,
) -> Result<(), HostError> {
    let (key, host) = guest.both(key, length)?;
    let found = host.shared.get(&host.settings.vm_id, key);
    let (value, cas) = found.ok_or(Status::NotFound)?;
    guest.give(&value, at, length_at)?;
    guest.put_number(cas_at, cas)
}

fn set_data(
    mut guest: Guest<'_>,
    key: (u32, u32),
    value: (u32, u32),
    cas: u32,
) -> Result<(), HostError> {
    let (key, value, host) = guest.pair(key, value)?;
    match host.shared.set(&host.settings.vm_id, key, value, cas) {
        Status::Ok => Ok(()),
        status => Err(status.into()),
    }
}

fn register(mut guest: Guest<'_>, name: u32, length: u32, at: u32) -> Result<(), HostError> {
    let (name, host) = guest.both(name, length)?;
    let queue = host.shared.register(&host.settings.vm_id, name);
    let queue = queue.ok_or(Status::InternalFailure)?;
    Effect::Listens(queue).add_to(&mut host.effects);
    guest.put_number(at, queue)
}

fn resolve(
    mut guest: Guest<'_>,
    vm: (u32, u32),
    name: (u32, u32),
    at: u32,
) -> Result<(), HostError> {
    let (vm, name, host) = guest.pair(vm, name)?;
    let vm = str::from_utf8(vm).map_err(|_| Status::BadArgument)?;
    let queue = host.shared.queue(vm, name).ok_or(Status::NotFound)?;
    guest.put_number(at, queue)
}

fn enqueue(mut guest: Guest<'_>, queue: u32, at: u32, length: u32) -> Result<(), HostError> {
    let (message, host) = guest.both(at, length)?;
    match host.shared.enqueue(queue, message) {
        Status::Ok => Effect::Enqueued(queue).add_to(&mut host.effects),
        status => return Err(status.into()),
    }
    Ok(())
}

fn dequeue(mut guest: Guest<'_>, queue: u32, at: u32, length_at: u32) -> Result<(), HostError> {
    let message = guest.host().shared.dequeue(queue)?;
    guest.give(&message, at, length_at)
}
