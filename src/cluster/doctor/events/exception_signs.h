// What an exception means: by the formats of messages, else by its type, else by the words of its message.
#pragma once

#include <optional>
#include <string_view>

#include "cluster/doctor/events/signs.h"

namespace braid {

Sign sign_of_exception(std::string_view exception);  // PythonError where nothing tells more

// The same for an exception that no format fits.
Sign sign_of_unusual(std::string_view exception);

// By the words of a message alone.
std::optional<Sign> sign_of_words(std::string_view message);

// The exception of another process or thread, which follows: "Caught ValueError in DataLoader worker process 0."
bool is_quoted_from_elsewhere(std::string_view exception);

}  // namespace braid
