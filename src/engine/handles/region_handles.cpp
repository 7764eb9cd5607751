// Region, RemoteRegion and Window: each call goes to the state or the WindowService.
#include "engine/on_engine_impl.hpp"

namespace linkspan {

using engine::on;

Region::Region(std::shared_ptr<const memory::Registration> registration)
    : registration_(std::move(registration)) {}
std::uint64_t Region::bytes() const noexcept {
  return registration_ == nullptr ? 0 : registration_->region().bytes();
}
MemoryKind Region::kind() const noexcept {
  return registration_ == nullptr ? MemoryKind::host : registration_->region().facts().kind;
}
void* Region::data() const noexcept {
  if (registration_ == nullptr) return nullptr;
  return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr)
      registration_->region().facts().address);
}
GpuUuid Region::gpu() const noexcept {
  return registration_ == nullptr ? GpuUuid{} : registration_->region().facts().gpu;
}
std::string Region::describe() const {
  if (registration_ == nullptr) return "no region";
  return std::to_string(bytes()) + " bytes of " + std::string(name_of(kind())) + " memory";
}

RemoteRegion::RemoteRegion(std::shared_ptr<engine::EngineImpl> impl,
                           std::shared_ptr<engine::ImportedRegion> imported)
    : impl_(std::move(impl)), imported_(std::move(imported)) {}
std::uint64_t RemoteRegion::bytes() const noexcept {
  return imported_ == nullptr ? 0 : imported_->bytes;
}
MemoryKind RemoteRegion::kind() const noexcept {
  return imported_ == nullptr ? MemoryKind::host : imported_->kind;
}
Permissions RemoteRegion::permissions() const noexcept {
  return imported_ == nullptr ? Permissions{} : imported_->peers;
}
std::string RemoteRegion::name() const {
  return imported_ == nullptr ? std::string() : imported_->name;
}
std::uint64_t RemoteRegion::peer() const noexcept {
  return imported_ == nullptr ? 0 : imported_->peer;
}

Window::Window(std::shared_ptr<engine::EngineImpl> impl, std::shared_ptr<engine::WindowState> state)
    : impl_(std::move(impl)), state_(std::move(state)) {}
device::Window Window::device() const {
  return state_ == nullptr ? device::Window{} : state_->device();
}
std::string Window::path() const { return state_ == nullptr ? "" : state_->path(); }
Status Window::failure() const {
  return on(impl_, [&](auto& impl) { return impl.services().windows.failure(*state_); });
}
Status Window::cancel() const {
  return on(impl_, [&](auto& impl) { return impl.services().windows.cancel(*state_); });
}
Status Window::raise(std::uint32_t index, std::uint64_t n, Duration timeout) const {
  return on(impl_,
            [&](auto& impl) { return impl.services().windows.raise(*state_, index, n, timeout); });
}
Result<std::uint64_t> Window::wait_signal(std::uint32_t index, std::uint64_t at_least,
                                          Duration timeout) const {
  return on(impl_, [&](auto& impl) {
    return impl.services().windows.wait_signal(*state_, index, at_least, timeout);
  });
}

}  // namespace linkspan
