// The disparity of a stereo pair, by a network that `vizoo export --to openvino` wrote:
//
//   disparity net.xml left.ppm right.ppm disparity.pfm
//
// Pictures are rectified, of one size, binary PPM of 8 bits. Disparities are in pixels.

#include <openvino/openvino.hpp>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

// RGB in [0, 1], shape (1, 3, height, width).
ov::Tensor read_ppm(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string kind;
    size_t width = 0, height = 0, largest = 0;
    file >> kind >> std::ws;
    for (std::string comment; file.peek() == '#';) std::getline(file, comment) >> std::ws;
    file >> width >> height >> largest;
    if (!file || kind != "P6" || largest != 255)
        throw std::runtime_error(path + ": no binary PPM of 8 bits");
    std::vector<unsigned char> bytes(width * height * 3);
    file.get();
    if (!file.read(reinterpret_cast<char*>(bytes.data()), bytes.size()))
        throw std::runtime_error(path + ": ends too early");
    ov::Tensor image(ov::element::f32, {1, 3, height, width});
    for (size_t i = 0; i < bytes.size(); ++i)
        image.data<float>()[i % 3 * width * height + i / 3] = bytes[i] / 255.f;
    return image;
}

void write_pfm(const std::string& path, const ov::Tensor& map) {
    const size_t height = map.get_shape()[2], width = map.get_shape()[3];
    std::ofstream file(path, std::ios::binary);
    file << "Pf\n" << width << " " << height << "\n-1\n";
    for (size_t row = height; row-- > 0;)  // from the bottom, little-endian
        file.write(reinterpret_cast<const char*>(map.data<const float>() + row * width), width * 4);
    if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
}

int main(int count, char** words) try {
    if (count != 5) throw std::runtime_error("give NET.xml LEFT.ppm RIGHT.ppm DISPARITY.pfm");
    ov::Core core;
    core.set_property("CPU", ov::hint::inference_precision(ov::element::f32));  // not bfloat16
    auto net = core.read_model(words[1]);
    const ov::Tensor left = read_ppm(words[2]), right = read_ppm(words[3]);
    if (left.get_shape() != right.get_shape()) throw std::runtime_error("pictures differ in size");
    // For one size it is up to a third faster, and int8 of any size crashes on processors with AMX.
    if (net->is_dynamic()) net->reshape({{"left", left.get_shape()}, {"right", right.get_shape()}});
    auto request = core.compile_model(net, "CPU").create_infer_request();
    request.set_tensor("left", left);
    request.set_tensor("right", right);
    request.infer();
    write_pfm(words[4], request.get_tensor("disparity"));
} catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
}
